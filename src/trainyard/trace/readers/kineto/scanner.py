"""The compiled scanner: `native/scan.c` in the place of `rows.Rows`, where it was built.

What it leaves to others goes through Rows' own code, one event at a time, so both keep the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL, POINTER, Array, byref, c_char, c_int, c_int64, c_size_t, c_void_p, memmove
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32, Collective
from trainyard.trace.readers.assemble import DEVICE_KINDS, HOST_KINDS, WAIT_KINDS, DeviceTable, HostTable, StreamWaits
from trainyard.trace.readers.collectives import collective_from_args, speaks_of_collective
from trainyard.trace.readers.kineto.document import StopReason
from trainyard.trace.readers.kineto.event import plain
from trainyard.trace.readers.kineto.native import NO_MEMORY
from trainyard.trace.readers.kineto.rows import Rows, Tables

_NAMES, _THREADS, _LANES, _SHAPES = range(4)
_HOST, _DEVICE, _WAITS = range(3)
_ON_DEVICE = 1


class Compiled(Rows):
    """The scanner in C."""

    def __init__(self, groups: Mapping[str, Mapping[str, Any]], found: CDLL) -> None:
        super().__init__(groups)
        self._library = found
        self._scan = c_void_p(found.scan_new())
        if not self._scan:
            raise MemoryError
        self._names = _Texts(self._number(_NAMES), _raw)  # pyright: ignore[reportAttributeAccessIssue]
        self._threads = _Texts(self._number(_THREADS), _pair)  # pyright: ignore[reportAttributeAccessIssue]
        self._lanes = _Texts(self._number(_LANES), bytes)  # pyright: ignore[reportAttributeAccessIssue]
        self._shapes = _Texts(self._number(_SHAPES), bytes)  # pyright: ignore[reportAttributeAccessIssue]
        self._host, self._device, self._waits = (self._pushed(table) for table in (_HOST, _DEVICE, _WAITS))

    def __del__(self) -> None:
        if getattr(self, "_scan", None):
            self._library.scan_free(self._scan)

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        self._take_apart()
        why, entries = c_int(), c_int64()
        done = self._library.scan_feed(self._scan, text, at, len(text), byref(why), byref(entries))
        self.entries += entries.value
        self._meet_all()
        if why.value == NO_MEMORY:
            raise MemoryError
        return done, StopReason(why.value)

    def tables(self) -> Tables:
        self._take_apart()
        names, place = _merged([msgspec.json.decode(b'"%b"' % raw) for raw in self._texts(_NAMES)])
        host = HostTable._make([*self._columns(_HOST, HOST_KINDS), self._host.collectives])
        device = DeviceTable._make([*self._columns(_DEVICE, DEVICE_KINDS), self._device.collectives])
        if place is not None:
            host, device = host._replace(name=place[host.name]), device._replace(name=place[device.name])
        waits = StreamWaits(*self._columns(_WAITS, WAIT_KINDS))
        lanes, shapes = self._texts(_LANES), self._texts(_SHAPES)
        return Tables(host, device, waits, names, tuple(lanes), tuple(shapes), self.dropped)

    def _meet_all(self) -> None:
        """Takes over the collectives that the last text spoke of."""
        row, text, ends = POINTER(c_int64)(), c_void_p(), POINTER(c_size_t)()
        count = self._library.scan_collectives(self._scan, byref(row), byref(text), byref(ends))
        for place, (name, args) in enumerate(zip(*[iter(_cut(text, ends, 2 * count))] * 2)):
            named = msgspec.json.decode(b'"%b"' % name)
            on_device = row[place] % 2 == _ON_DEVICE
            if on_device or speaks_of_collective(named):
                found = collective_from_args(named, plain(args), self.groups)
                (self._device if on_device else self._host).collectives[row[place] // 2] = found

    def _number(self, table: int) -> Callable[[bytes], int]:
        return lambda text: self._library.scan_intern(self._scan, table, text, len(text))

    def _pushed(self, table: int) -> Any:
        return _Pushed(
            lambda: self._library.scan_count(self._scan, table),
            lambda row: self._library.scan_push(self._scan, table, row),
        )

    def _texts(self, table: int) -> list[bytes]:
        text, ends = c_void_p(), POINTER(c_size_t)()
        count = self._library.scan_texts(self._scan, table, byref(text), byref(ends))
        return _cut(text, ends, count)

    def _columns(self, table: int, kinds: tuple[type[np.integer[Any]], ...]) -> list[NDArray[Any]]:
        """Copies that outlive the scan, one after the other so that no two copies of a table stand side by side."""
        count = self._library.scan_count(self._scan, table)
        columns: list[NDArray[Any]] = []
        for number, kind in enumerate(kinds):
            column = np.empty(count, kind)
            if count:
                address = self._library.scan_column(self._scan, table, number)
                memmove(column.ctypes.data, address, column.nbytes)
            self._library.scan_release(self._scan, table, number)
            columns.append(column)
        return columns


class _Texts:
    """What `rows.Numbered` is, with its texts on the compiled side; those that came this way can be asked back."""

    def __init__(self, number: Callable[[bytes], int], spell: Callable[[Any], bytes]) -> None:
        self._number, self._spell = number, spell
        self._kept: dict[int, Any] = {}

    def column(self, texts: list[Any]) -> I32:
        numbers = [self._number(self._spell(text)) for text in texts]
        self._kept.update(zip(numbers, texts))
        return np.array(numbers, np.int32)

    def texts(self) -> dict[int, Any]:
        return self._kept


class _Pushed:
    """What `rows.Growing` is, with its rows on the compiled side."""

    def __init__(self, count: Callable[[], int], push: Callable[[Array[c_int64]], int]) -> None:
        self.collectives: dict[int, Collective] = {}
        self._count, self._push = count, push

    @property
    def count(self) -> int:
        return self._count()

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        for row in zip(*(column.tolist() for column in columns)):
            if not self._push((c_int64 * len(row))(*map(int, row))):
                raise MemoryError


def _raw(name: str) -> bytes:
    return msgspec.json.encode(name)[1:-1]


def _pair(thread: tuple[int | str, int | str]) -> bytes:
    return b" ".join(map(msgspec.json.encode, thread))


def _cut(text: c_void_p, ends: Any, count: int) -> list[bytes]:
    if not count:
        return []
    edges = [0, *ends[:count]]
    whole = bytes((c_char * edges[-1]).from_address(text.value or 0)) if edges[-1] else b""
    return [whole[begin:end] for begin, end in pairwise(edges)]


def _merged(names: list[str]) -> tuple[tuple[str, ...], NDArray[np.int32] | None]:
    """One text may be spelled in several ways: each name once, and where the old numbers went (None: nowhere)."""
    numbers: dict[str, int] = {}
    place = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
    return tuple(numbers), place if len(numbers) < len(names) else None
