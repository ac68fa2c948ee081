"""The index `rankN.json` of a file with the values of a rank's tensors."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.numerics.tensor_record import TensorKey


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True):
    """`offset`: of the first byte."""

    key: TensorKey
    dtype: str
    shape: tuple[int, ...]
    offset: int


class ValueIndex(msgspec.Struct, frozen=True, kw_only=True):
    """`failure`: why values are missing; empty if none are."""

    tensors: tuple[StoredTensor, ...]
    failure: str = ""


def read_index(folder: Path, rank: int) -> ValueIndex:
    """The index of a rank; an empty one if the rank has no files. Raises `BadFile`."""
    path = folder / f"rank{rank}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ValueIndex)
    except FileNotFoundError:
        return ValueIndex(tensors=())
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path}: {error}.", "Remove the folder, and repeat the command.") from error
