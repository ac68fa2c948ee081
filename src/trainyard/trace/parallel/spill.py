"""What was concluded of a rank, kept in a file and mapped back into memory when it is asked for.

A file holds the numpy columns one after another, then the rest as MessagePack in which each column is (dtype, shape,
offset), then that part's length in 8 bytes. Columns come back read-only and cost memory only where they are looked
at. Decoding is by type: nothing in a file is ever run.
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
_ALIGN = 64
_KEPT = 2  # ranks that stay open: the one looked at and the one before


def save(path: Path, value: object) -> None:
    """Writes a tree of named tuples and structs with numpy columns. Raises `PlaceUnwritable`."""
    try:
        with path.open("wb") as file:
            tail = msgspec.msgpack.encode(value, enc_hook=partial(_encode, file))
            file.write(tail + len(tail).to_bytes(8, "little"))
    except OSError as error:
        raise PlaceUnwritable(
            f"{path}: cannot be written: {error.strerror}.", "Point TMPDIR at a roomy folder."
        ) from error


def load(path: Path, kind: type[_T]) -> _T:
    """What `save` wrote of a value of this type."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    length = int.from_bytes(data[-8:], "little")
    return msgspec.msgpack.decode(
        data[-8 - length : -8], type=kind, dec_hook=lambda kind, part: _decode(data, kind, part)
    )


class SpilledItems(Sequence[_T]):
    """`count` things that lie in files; each is loaded by `open_` when asked for, and forgotten soon after."""

    def __init__(self, count: int, open_: Callable[[int], _T]) -> None:
        self._count = count
        self._open = lru_cache(maxsize=_KEPT)(open_)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | Sequence[_T]:
        selected = range(self._count)[index]
        return (
            self._open(selected)
            if isinstance(selected, int)
            else SpilledItems(len(selected), lambda i: self._open(selected[i]))
        )


def _encode(file: BinaryIO, part: object) -> object:
    if isinstance(part, np.ndarray):
        file.write(bytes(-file.tell() % _ALIGN))
        offset = file.tell()
        file.write(np.ascontiguousarray(part).data)
        return part.dtype.str, part.shape, offset
    return part.pairs if isinstance(part, Keys) else encode_hook(part)


def _decode(data: memoryview, kind: Any, part: Any) -> object:
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
