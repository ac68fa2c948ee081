"""Events -> rows of the host and device tables: which events count, and what is kept of each.

`Rows` is the scanner in Python: it decodes some thousand events at once and falls back to reading them apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import CALL, COPY, DRAWN, I8, I32, I64, KERNEL, MEMSET, NOTE, OP, PYTHON, Collective
from trainyard.trace.readers.assemble import DEVICE_KINDS, HOST_KINDS, WAIT_KINDS, DeviceTable, HostTable, StreamWaits
from trainyard.trace.readers.collectives import collective_from_args, speaks_of_collective
from trainyard.trace.readers.kineto.document import StopReason
from trainyard.trace.readers.kineto.event import (
    UNREADABLE_EVENT,
    CallArgs,
    ChromeEvent,
    DeviceArgs,
    OpArgs,
    args_of,
    decode_events,
    ns_of,
    plain,
)

_DEVICE = {"kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": MEMSET, "memset": MEMSET,
           "gpu_user_annotation": DRAWN}  # fmt: skip
_HOST = {
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": NOTE,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "python_function": PYTHON,
}
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
_STREAM_WAIT = "Stream Wait Event"
_ON_DEVICE, _WAITS = 10, 20
_CODES = _HOST | {cat: _ON_DEVICE + what for cat, what in _DEVICE.items()} | {"cuda_sync": _WAITS}
_GAP = re.compile(rb"[ \t\r\n,]*")
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_CLOSE = ord("]")
_WIDEST, _NARROWEST = 4 << 20, 1 << 12
_MOST_APART = 1 << 14
_FARTHEST = 2**61


class Tables(NamedTuple):
    """All that was kept of a document's events. `lanes` and `shapes` are as the file spells them; `dropped` events
    had no readable time."""

    host: HostTable
    device: DeviceTable
    waits: StreamWaits
    names: tuple[str, ...]
    lanes: tuple[bytes, ...]
    shapes: tuple[bytes, ...]
    dropped: int


class Rows:
    """The scanner in Python."""

    def __init__(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        self.groups = groups
        self.entries = self.dropped = 0
        self._names, self._threads, self._lanes, self._shapes = Numbered(), Numbered(), Numbered(), Numbered()
        self._host, self._device = Growing(HOST_KINDS), Growing(DEVICE_KINDS)
        self._waits = Growing(WAIT_KINDS)
        self._reach, self._without = _WIDEST, b""
        self._apart: list[ChromeEvent] = []
        """Events that were read apart and not taken yet: columns of one row are as much work as columns of many."""

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        place = _after_gap(text, at)
        while place < len(text) and text[place] != _CLOSE:
            end = self._boundary(text, place)
            if not end:
                return place, StopReason.ODD
            try:
                events = decode_events(b"[%b]" % text[place:end])
            except UNREADABLE_EVENT:
                # Halve until the odd event stands alone: the others are still read at once.
                if self._reach <= _NARROWEST:
                    return place, StopReason.ODD
                self._reach = min(self._reach, max(end - place, 2 * _NARROWEST)) // 2
                continue
            self._reach = min(2 * self._reach, _WIDEST)
            self.entries += len(events)
            self._take([*self._apart, *events])
            self._apart = []
            place = _after_gap(text, end)
        return (place + 1, StopReason.CLOSED) if place < len(text) else (place, StopReason.NEED_MORE)

    def add(self, event: ChromeEvent) -> None:
        self.entries += 1
        self._apart.append(event)
        if len(self._apart) >= _MOST_APART:
            self._take_apart()

    def tables(self) -> Tables:
        self._take_apart()
        return Tables(
            HostTable._make([*self._host.columns(), self._host.collectives]),
            DeviceTable._make([*self._device.columns(), self._device.collectives]),
            StreamWaits(*self._waits.columns()),
            tuple(self._names.texts()),
            tuple(self._lanes.texts()),
            tuple(self._shapes.texts()),
            self.dropped,
        )

    def _boundary(self, text: bytes, begin: int) -> int:
        """The end of the last event within reach that another one follows (of the first, where none is); 0 where there
        is none in the text."""
        if text is self._without:
            return 0
        limit = min(len(text), begin + self._reach)
        for first in (max(begin, limit - _NARROWEST), begin):
            found = [match.start() for match in _BETWEEN.finditer(text, first, limit)]
            if found:
                return found[-1] + 1
        if beyond := _BETWEEN.search(text, begin):
            return beyond.start() + 1
        self._without = text
        return 0

    def _take_apart(self) -> None:
        events, self._apart = self._apart, []
        self._take(events)

    def _take(self, events: list[ChromeEvent]) -> None:
        """Keeps what counts of the events: `X` events of a known category with a readable time."""
        code_of = {
            cat: _CODES.get(cat.lower(), -1) if cat and cat.isascii() else -1 for cat in {event.cat for event in events}
        }
        events = [event for event in events if event.ph == "X" and code_of[event.cat] >= 0]
        if not events:
            return
        start, readable = ns_of([event.ts for event in events])
        length, also = ns_of([event.dur or b"0" for event in events])
        readable &= also & (length >= 0) & (length < _FARTHEST) & (start > -_FARTHEST) & (start < _FARTHEST)
        if not readable.all():
            self.dropped += int((~readable).sum())
            events = [event for event, good in zip(events, readable) if good]
            start, length = start[readable], length[readable]
        code = np.array([code_of[event.cat] for event in events], np.int8)
        stop = start + length
        name = self._names.column([event.name if type(event.name) is str else str(event.name) for event in events])
        for on_device, take in ((code < _ON_DEVICE, self._take_host), (code >= _ON_DEVICE, self._take_device)):
            rows = np.flatnonzero(on_device)
            if len(rows):
                take([events[row] for row in rows.tolist()], start[rows], stop[rows], name[rows], code[rows])

    def _take_host(self, events: list[ChromeEvent], start: I64, stop: I64, name: I32, what: I8) -> None:
        thread = self._threads.column([(event.pid, event.tid) for event in events])
        # In 2021 annotations were operators too.
        what[(what == OP) & self._of_names(name, lambda text: text.startswith(_ANNOTATIONS))] = NOTE
        n = len(events)
        correlation, external, seq = (np.full(n, -1, np.int64) for _ in range(3))
        backward, shape = np.zeros(n, np.int8), np.full(n, -1, np.int32)
        calls = np.flatnonzero(what == CALL)
        args = args_of([events[row].args for row in calls.tolist()], CallArgs)
        correlation[calls] = [one.correlation for one in args]
        ops = np.flatnonzero(what == OP)
        args = args_of([events[row].args for row in ops.tolist()], OpArgs)
        external[ops] = [one.external_id for one in args]
        seq[ops] = [one.seq for one in args]
        backward[ops] = [one.forward_thread > 0 for one in args]
        spelled = [(row, one) for row, one in zip(ops.tolist(), args) if one.dims or one.types or one.values]
        if spelled:
            texts = [b"%b\0%b\0%b" % (one.dims, one.types, one.values) for _, one in spelled]
            shape[[row for row, _ in spelled]] = self._shapes.column(texts)
        met = (what == NOTE) & self._of_names(name, speaks_of_collective)
        self._meet(self._host, events, np.flatnonzero(met))
        self._host.extend((start, stop, name, thread, what, correlation, external, seq, backward, shape))

    def _take_device(self, events: list[ChromeEvent], start: I64, stop: I64, name: I32, code: I8) -> None:
        args = args_of([event.args for event in events], DeviceArgs)
        device = np.array([one.device if -1 <= one.device < 2**31 else -1 for one in args], np.int32)
        lane = self._lanes.column([_lane(one, event) for one, event in zip(args, events)])
        waits = [
            row for row in np.flatnonzero(code == _WAITS).tolist()
            if args[row].wait_on >= 0 and str(events[row].name) == _STREAM_WAIT
        ]  # fmt: skip
        if waits:
            correlation = np.array([args[row].correlation for row in waits], np.int64)
            on = self._lanes.column([b"%d" % args[row].wait_on for row in waits])
            self._waits.extend((correlation, device[waits], lane[waits], on))
        work = np.flatnonzero(code != _WAITS)
        events, args = [events[row] for row in work.tolist()], [args[row] for row in work.tolist()]
        what = code[work] - np.int8(_ON_DEVICE)
        met = [row for row, one in enumerate(args) if one.collective and what[row] == KERNEL]
        self._meet(self._device, events, met)
        columns = (
            (one.correlation, one.external_id if one.external_id >= 0 else one.old_external_id, one.bytes,
             one.occupancy if 0 <= one.occupancy <= 100 else -1)
            for one in args
        )  # fmt: skip
        correlation, external, size, occupancy = np.array(list(columns), np.int64).reshape(-1, 4).T
        self._device.extend(
            (start[work], stop[work], name[work], lane[work], device[work], what, correlation, external,
             size, occupancy)
        )  # fmt: skip

    def _of_names(self, number: I32, law: Callable[[str], bool]) -> NDArray[np.bool_]:
        """What `law` says of each name."""
        texts = self._names.texts()
        said = {one: law(texts[one]) for one in np.flatnonzero(np.bincount(number)).tolist()}
        return np.array([said.get(one, False) for one in range(max(said, default=-1) + 1)], bool)[number]

    def _meet(self, table: Growing, events: list[ChromeEvent], rows: Iterable[int]) -> None:
        for row in rows:
            name, args = str(events[row].name), plain(events[row].args)
            table.collectives[table.count + row] = collective_from_args(name, args, self.groups)


def _after_gap(text: bytes, place: int) -> int:
    """Past white space and commas."""
    found = _GAP.match(text, place)
    return found.end() if found else place


def _lane(args: DeviceArgs, event: ChromeEvent) -> bytes:
    """The stream as the file spells it; in 2021 it was the thread's id only."""
    return bytes(args.stream) if args.stream else msgspec.json.encode(event.tid)


class Numbered(dict[Any, int]):
    """Numbers texts in order of first appearance."""

    def __missing__(self, text: Any) -> int:
        number = self[text] = len(self)
        return number

    def column(self, texts: list[Any]) -> I32:
        return np.array(list(map(self.__getitem__, texts)), np.int32)

    def texts(self) -> list[Any]:
        return list(self)


class Growing:
    """Columns that grow by blocks of rows."""

    def __init__(self, kinds: Sequence[type[np.integer[Any]]]) -> None:
        self.kinds = kinds
        self.count = 0
        self.collectives: dict[int, Collective] = {}
        self._blocks: list[list[NDArray[Any]]] = []

    def extend(self, columns: Sequence[NDArray[Any]]) -> None:
        self._blocks.append([column.astype(kind) for column, kind in zip(columns, self.kinds)])
        self.count += len(columns[0])

    def columns(self) -> list[NDArray[Any]]:
        """The whole columns, made one by one while their blocks go, so that nothing stands twice."""
        if len(self._blocks) == 1:
            return self._blocks.pop()
        made = []
        for place, kind in enumerate(self.kinds):
            made.append(np.concatenate([np.empty(0, kind), *(block[place] for block in self._blocks)]))
            for block in self._blocks:
                block[place] = np.empty(0, kind)
        return made
