"""Stores a rank's results in a file, and memory-maps them on access.

A file holds the numpy columns one after another, then the rest as MessagePack in which each column is (dtype, shape,
offset), then the length of that part in 8 bytes. Loaded columns are read-only and take memory only for the pages that
are accessed. Decoding is by type: no code from a file is executed. `trace/measure.py` stores classified and booked
ranks in this way, so that memory does not grow with their number.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_origin, overload

import msgspec
import numpy as np

from trainyard.errors import PlaceUnwritable
from trainyard.ledger import Account, decode_hook, encode_hook
from trainyard.trace.classify.kernels import Keys

_T = TypeVar("_T")
_ALIGNMENT_BYTES = 64
_MAX_OPEN_RANKS = 2  # ranks that stay open: the current and the previous one


def save(path: Path, value: object) -> None:
    """Writes `value`, a tree of named tuples and structs with numpy columns, to a file. Raises `PlaceUnwritable`."""
    try:
        with path.open("wb") as file:
            # `_encode` writes each array to the file while the rest is encoded.
            tail = msgspec.msgpack.encode(value, enc_hook=partial(_encode, file))
            file.write(tail + len(tail).to_bytes(8, "little"))
    except OSError as error:
        raise PlaceUnwritable(
            f"{path}: cannot be written: {error.strerror}.", "Set TMPDIR to a folder with enough space."
        ) from error


def load(path: Path, kind: type[_T]) -> _T:
    """Loads a value of type `kind` that `save` wrote. Its arrays are read-only views of the mapped file."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    length = int.from_bytes(data[-8:], "little")
    return msgspec.msgpack.decode(
        data[-8 - length : -8], type=kind, dec_hook=lambda kind, part: _decode(data, kind, part)
    )


class SpilledItems(Sequence[_T]):
    """`count` items in files, loaded by `open_` (a function of the index) on access; only the last few stay loaded."""

    def __init__(self, count: int, open_: Callable[[int], _T]) -> None:
        self._count = count
        self._open = lru_cache(maxsize=_MAX_OPEN_RANKS)(open_)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        """The result at `index`, loaded from its file; for a slice, a sequence that loads each result on access."""
        selected = range(self._count)[index]
        return (
            self._open(selected)
            if isinstance(selected, int)
            else SpilledItems(len(selected), lambda i: self._open(selected[i]))
        )


def _encode(file: BinaryIO, part: object) -> object:
    """Encodes an object that MessagePack does not support: called by msgspec for each of them.

    An array is written to `file`, at a multiple of `_ALIGNMENT_BYTES`, and (dtype, shape, offset) returned; of `Keys`
    the list of its pairs is returned, of an `Account` its text.
    """
    if isinstance(part, np.ndarray):
        file.write(bytes(-file.tell() % _ALIGNMENT_BYTES))
        offset = file.tell()
        file.write(np.ascontiguousarray(part).data)
        return part.dtype.str, part.shape, offset
    return part.pairs if isinstance(part, Keys) else encode_hook(part)


def _decode(data: memoryview, kind: Any, part: Any) -> object:
    """Decodes `part`, as `_encode` returned it, to a value of type `kind`. Arrays are views of `data`, the file."""
    if get_origin(kind) is np.ndarray:
        dtype, shape, offset = part
        count = prod(shape)
        return np.frombuffer(data, dtype, count, offset).reshape(shape) if count else np.empty(shape, dtype)
    if kind is Keys:
        keys = Keys()
        for account, phase in part:
            keys.number(Account.parse(account), phase)
        return keys
    return decode_hook(kind, part)
