"""The operations that compute one tensor of a training, with the values that enter them, as files.

`slice-rankN.json` has the operations, `rankN-inputM.bin` the bytes of an input in row-major order.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from trainyard.errors import BadFile, MissingFile
from trainyard.numerics.tensor_record import TensorKey

_OPERATION = re.compile(r"[a-zA-Z_]\w*(\.[a-zA-Z_]\w*){2}")
MOST_INPUT_BYTES = 1 << 30
"""Bytes of the inputs of a slice; with more, nothing is captured."""


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to capture of a training: the operations with the keys `operations`, whose `output` is 0, in one step.
    `sources`: tensors that enter them; operations between these and the others that are not recorded, such as views and
    collectives, are captured too. `result`: the tensor that they compute."""

    folder: str
    operations: tuple[TensorKey, ...]
    sources: tuple[TensorKey, ...] = ()
    result: TensorKey

    @property
    def is_update(self) -> bool:
        """Whether the operations are those of the optimizer."""
        return self.result.role in ("weight", "optimizer_state") and self.result.phase == "optimizer"


class CapturedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that enters the operations. `stride`: in elements. `parameter`: path of the parameter of the model whose
    values these are, such as `Decoder.head.weight`; empty for other tensors."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    file: str
    parameter: str = ""


class CapturedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operation, such as `aten.mm.default`. `arguments`, `keywords`: see `encode_argument`. `name`: of its
    result. `is_alias`: its result is its first argument, or a view of it. `written`: names of the tensors that it
    writes to."""

    name: str
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    module: str
    location: str
    is_alias: bool = False
    written: tuple[str, ...] = ()


class CapturedSlice(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of a rank in order, and what enters them. `result`: the reference to the last result, as an encoded
    argument; None if the rank did not compute it."""

    inputs: tuple[CapturedInput, ...]
    operations: tuple[CapturedOperation, ...]
    result: Any
    versions: dict[str, str]
    device: str


def read_slice(folder: Path, rank: int) -> CapturedSlice:
    """The slice that a rank captured. Raises `MissingFile` if it captured none, `BadFile` if it cannot be read."""
    path = folder / f"slice-rank{rank}.json"
    try:
        captured = msgspec.json.decode(path.read_bytes(), type=CapturedSlice)
    except FileNotFoundError:
        captured = None
    except msgspec.DecodeError as error:
        raise BadFile(f"{path}: {error}.", "Run it again.") from error
    if captured is None or captured.result is None:
        raise MissingFile(
            f"the operations were not seen again when the command was repeated (rank {rank}).",
            "Check that the command does the same in each run: fix its seeds.",
        )
    for operation in captured.operations:
        if not _OPERATION.fullmatch(operation.operation):
            raise BadFile(f"{path}: {operation.operation!r} is not the name of an operation.", "Run it again.")
    return captured
