"""The compiled scanner: uses `native/scan.c` instead of `rows.Rows` if it was built.

Events that it cannot read go through the code of `Rows`, one at a time, so both scanners give the same tables. The
tables and the numbered texts (names, threads, streams, ...) are in the memory of the C code, which is called through
ctypes; the classes below give `Rows` access to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL, POINTER, Array, byref, c_char, c_int, c_int64, c_size_t, c_void_p, memmove
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32, Collective
from trainyard.trace.readers.collectives import collective_from_args, names_collective
from trainyard.trace.readers.kineto.document import StopReason
from trainyard.trace.readers.kineto.event import decode_args
from trainyard.trace.readers.kineto.native import NO_MEMORY
from trainyard.trace.readers.kineto.rows import DEVICE_ROW_DTYPES, WAIT_ROW_DTYPES, Origins, Pid, Rows, Tables
from trainyard.trace.readers.tables import HOST_DTYPES, DeviceTable, HostTable, StreamWaits

_NAMES, _THREADS, _LANES, _SHAPES, _PROCESSES, _CATEGORIES = range(6)
"""Numbers of the C code's text tables."""
_HOST, _DEVICE, _WAITS = range(3)
"""Numbers of the C code's row tables."""
_ON_DEVICE = 1
_JSON_PID = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+')


class CompiledScanner(Rows):
    """The scanner in C, with the interface of `Rows`."""

    def __init__(self, groups: Mapping[str, Mapping[str, Any]], native: CDLL) -> None:
        """`native`: the loaded library. Raises `MemoryError` if it cannot allocate its scanner."""
        super().__init__(groups)
        self._library = native
        self._scan = c_void_p(native.scan_new())
        if not self._scan:
            raise MemoryError
        self._names = _NativeTextIndex(self._text_adder(_NAMES), _encode_name)  # pyright: ignore[reportAttributeAccessIssue]
        self._threads = _NativeTextIndex(self._text_adder(_THREADS), _encode_thread)  # pyright: ignore[reportAttributeAccessIssue]
        self._lanes = _NativeTextIndex(self._text_adder(_LANES), bytes)  # pyright: ignore[reportAttributeAccessIssue]
        self._shapes = _NativeTextIndex(self._text_adder(_SHAPES), bytes)  # pyright: ignore[reportAttributeAccessIssue]
        self._processes = _NativeTextIndex(self._text_adder(_PROCESSES), _encode_process)  # pyright: ignore[reportAttributeAccessIssue]
        self._categories = _NativeTextIndex(self._text_adder(_CATEGORIES), _encode_name)  # pyright: ignore[reportAttributeAccessIssue]
        self._host, self._device, self._waits = (self._column_builder(table) for table in (_HOST, _DEVICE, _WAITS))

    def __del__(self) -> None:
        if getattr(self, "_scan", None):
            self._library.scan_free(self._scan)

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        """Reads the events of `text` from byte `at` on; returns the position after the last one read and why the scan
        stopped. Raises `MemoryError`."""
        self._flush_single()
        reason, entries = c_int(), c_int64()
        position = self._library.scan_feed(self._scan, text, at, len(text), byref(reason), byref(entries))
        self.entries += entries.value
        self._decode_collectives()
        if reason.value == NO_MEMORY:
            raise MemoryError
        return position, StopReason(reason.value)

    def tables(self) -> Tables:
        """The tables of all events fed so far; names that JSON spells in several ways become one. Can be called once:
        it frees the C code's columns."""
        self._flush_single()
        memory = self._memory_events()
        names, new_index = _merge_spellings([msgspec.json.decode(b'"%b"' % raw) for raw in self._texts(_NAMES)])
        host = HostTable._make([*self._columns(_HOST, HOST_DTYPES), self._host.collectives])
        *device_columns, device_process, device_category = self._columns(_DEVICE, DEVICE_ROW_DTYPES)
        device = DeviceTable._make([*device_columns, self._device.collectives])
        if new_index is not None:
            host, device = host._replace(name=new_index[host.name]), device._replace(name=new_index[device.name])
        *wait_columns, wait_process = self._columns(_WAITS, WAIT_ROW_DTYPES)
        lanes, shapes = self._texts(_LANES), self._texts(_SHAPES)
        return Tables(
            host=host,
            device=device,
            waits=StreamWaits(*wait_columns),
            memory=memory,
            origins=Origins(
                device_process=device_process,
                wait_process=wait_process,
                device_category=device_category,
                processes=tuple(_decode_process(text) for text in self._texts(_PROCESSES)),
                thread_pids=tuple(_decode_pid(text)[0] for text in self._texts(_THREADS)),
                categories=tuple(msgspec.json.decode(b'"%b"' % text) for text in self._texts(_CATEGORIES)),
                texts=self._process_texts,
            ),
            names=names,
            lanes=tuple(lanes),
            shapes=tuple(shapes),
            dropped=self.dropped,
        )

    def _decode_collectives(self) -> None:
        """Decodes the collectives in the text that was fed last, and keeps them by the row of their table."""
        coded_row, text, ends = POINTER(c_int64)(), c_void_p(), POINTER(c_size_t)()
        count = self._library.scan_collectives(self._scan, byref(coded_row), byref(text), byref(ends))
        texts = _split_texts(text, ends, 2 * count)  # name and args of each collective in turn
        for index, (raw_name, args) in enumerate(zip(texts[::2], texts[1::2])):
            name = msgspec.json.decode(b'"%b"' % raw_name)
            # The C code stores twice the row, plus 1 if it is a row of the device table.
            row, is_device_row = coded_row[index] // 2, coded_row[index] % 2 == _ON_DEVICE
            if is_device_row or names_collective(name):
                collective = collective_from_args(name, decode_args(args), self.groups)
                (self._device if is_device_row else self._host).collectives[row] = collective

    def _text_adder(self, table: int) -> Callable[[bytes], int]:
        """The function that adds a text to a text table of the C code and returns its number."""
        return lambda text: self._library.scan_intern(self._scan, table, text, len(text))

    def _column_builder(self, table: int) -> Any:
        """The `columns.ColumnBuilder` of a row table of the C code."""
        return _NativeColumnBuilder(
            count=lambda: self._library.scan_count(self._scan, table),
            push=lambda row: self._library.scan_push(self._scan, table, row),
        )

    def _texts(self, table: int) -> list[bytes]:
        """The texts of a text table of the C code, by number."""
        text, ends = c_void_p(), POINTER(c_size_t)()
        count = self._library.scan_texts(self._scan, table, byref(text), byref(ends))
        return _split_texts(text, ends, count)

    def _columns(self, table: int, dtypes: tuple[type[np.integer[Any]], ...]) -> list[NDArray[Any]]:
        """Copies the columns of a row table out of the C code's memory, as arrays of the given dtypes; each original is
        freed before the next copy."""
        count = self._library.scan_count(self._scan, table)
        columns: list[NDArray[Any]] = []
        for column_index, dtype in enumerate(dtypes):
            column = np.empty(count, dtype)
            if count:
                address = self._library.scan_column(self._scan, table, column_index)
                memmove(column.ctypes.data, address, column.nbytes)
            self._library.scan_release(self._scan, table, column_index)
            columns.append(column)
        return columns


class _NativeTextIndex:
    """`columns.TextIndex` with the texts in the compiled code; `texts` has only those that were added from Python."""

    def __init__(self, add_text: Callable[[bytes], int], encode: Callable[[Any], bytes]) -> None:
        """`add_text`: adds a text to the C code's table and returns its number; `encode`: the bytes, as in the file's
        JSON, of a key of `columns.TextIndex`."""
        self._add_text, self._encode = add_text, encode
        self._added: dict[int, Any] = {}

    def add_all(self, texts: list[Any]) -> I32:
        """Adds the texts that are new; returns the number of each text."""
        numbers = [self._add_text(self._encode(text)) for text in texts]
        self._added.update(zip(numbers, texts))
        return np.array(numbers, np.int32)

    def texts(self) -> dict[int, Any]:
        """Number -> text of the texts added from Python."""
        return self._added


class _NativeColumnBuilder:
    """`columns.ColumnBuilder` with the rows in the compiled code."""

    def __init__(self, count: Callable[[], int], push: Callable[[Array[c_int64]], int]) -> None:
        """`count`: returns the number of rows; `push`: appends a row and returns 0 if memory is exhausted."""
        self.collectives: dict[int, Collective] = {}
        self._count, self._push = count, push

    @property
    def count(self) -> int:
        return self._count()

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        """Appends a block of rows, given as one array per column. Raises `MemoryError`."""
        for row in zip(*(column.tolist() for column in columns)):
            if not self._push((c_int64 * len(row))(*map(int, row))):
                raise MemoryError


def _encode_name(name: str) -> bytes:
    return msgspec.json.encode(name)[1:-1]


def _encode_thread(thread: tuple[int | str, int | str]) -> bytes:
    return b" ".join(map(msgspec.json.encode, thread))


def _encode_process(process: tuple[Pid, int]) -> bytes:
    pid, rank = process
    return msgspec.json.encode(pid) + b" " + (b"%d" % rank if rank >= 0 else b"")


def _decode_process(text: bytes) -> tuple[Pid, int]:
    """(pid, rank) of a process as `_encode_process` writes it; the rank is -1 if absent."""
    pid, rest = _decode_pid(text)
    return pid, int(rest) if rest else -1


def _decode_pid(text: bytes) -> tuple[Pid, bytes]:
    """The pid at the beginning of a thread's or process's text, and the text after it and a space."""
    pid = _JSON_PID.match(text)
    end = pid.end() if pid else len(text)
    return msgspec.json.decode(text[:end]), text[end + 1 :]


def _split_texts(text: c_void_p, ends: Any, count: int) -> list[bytes]:
    """Copies the `count` texts that are stored one after another from the address `text` on. `ends`: pointer to the
    byte offset of the end of each."""
    if not count:
        return []
    edges = [0, *ends[:count]]
    data = bytes((c_char * edges[-1]).from_address(text.value or 0)) if edges[-1] else b""
    return [data[begin:end] for begin, end in pairwise(edges)]


def _merge_spellings(names: list[str]) -> tuple[tuple[str, ...], NDArray[np.int32] | None]:
    """Merges names that JSON spells in several ways (`a` and `\\u0061`), which the C code numbers separately. Returns
    the distinct names, and the position among them of each of `names` (None if all are distinct)."""
    numbers: dict[str, int] = {}
    new_index = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
    return tuple(numbers), new_index if len(numbers) < len(names) else None
