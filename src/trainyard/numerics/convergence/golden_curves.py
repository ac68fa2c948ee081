"""Golden curves: losses stored in a file as a reference for later runs. Repeats of a seed give the noise between
identical runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from trainyard.errors import BadFile, FileTooLarge
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import unreadable
from trainyard.numerics.convergence.curves import LossCurve
from trainyard.store.disk_space import write_whole

_MAX_FILE_BYTES = 1 << 28


class Golden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file."""

    curves: tuple[LossCurve, ...]
    """One per run, of any number of seeds."""
    schema: Literal["trainyard/golden/1"]


def write(path: Path, curves: Sequence[LossCurve]) -> None:
    """Stores curves as the reference. Raises `PlaceUnwritable`."""
    golden = Golden(curves=tuple(curves), schema="trainyard/golden/1")
    write_whole(path, msgspec.json.encode(golden) + b"\n")


def read(path: Path) -> tuple[LossCurve, ...]:
    """The curves of a file that `write` stored. Raises `BadFile` if it is another file, or empty."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise FileTooLarge(f"{path}: larger than {_MAX_FILE_BYTES >> 20} MiB: not a file of golden curves.")
        golden = msgspec.json.decode(path.read_bytes(), type=Golden)
    except OSError as error:
        raise unreadable(path, error) from error
    except UNREADABLE as error:
        raise BadFile(f"{path}: not golden curves: {error}.", "`--store-golden FILE` writes such a file.") from error
    if not golden.curves:
        raise BadFile(f"{path}: $.curves is empty.", "`--store-golden FILE` writes such a file.")
    return golden.curves
