"""Converts chrome-trace events into rows of the host and device tables.

`Rows` is the scanner in Python: `document.Walk` feeds it the text of the events; it decodes thousands at once, and
leaves irregular events to the caller, which decodes them singly and passes them to `Rows.add`. Texts that repeat
(names, threads, streams, shapes) are stored once and referred to by their number. A lane is a device stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import CALL, I8, I32, I64, KERNEL, NOTE, OP, MemoryEvents
from trainyard.trace.readers.collectives import collective_from_args, names_collective
from trainyard.trace.readers.kineto.categories import (
    FIRST_DEVICE_CODE,
    NO_WORK,
    STREAM_WAIT_CODE,
    UNKNOWN_WORK,
    code_of_category,
)
from trainyard.trace.readers.kineto.columns import ColumnBuilder, TextIndex
from trainyard.trace.readers.kineto.document import StopReason
from trainyard.trace.readers.kineto.event import (
    UNREADABLE_EVENT,
    CallArgs,
    ChromeEvent,
    DeviceArgs,
    MemoryArgs,
    OpArgs,
    decode_all_args,
    decode_args,
    decode_events,
    parse_timestamps_ns,
)
from trainyard.trace.readers.tables import (
    DEVICE_DTYPES,
    HOST_DTYPES,
    WAIT_DTYPES,
    DeviceTable,
    HostTable,
    StreamWaits,
)

_ANNOTATIONS = ("Optimizer.", "enumerate(DataLoader)")
"""Beginnings of the names of annotations that old files record as ops."""
_STREAM_WAIT = "Stream Wait Event"
_MEMORY = "[memory]"
"""Name of the instants at which memory is allocated or freed. `native/scan.c` leaves them to `Rows.add`."""
_MAX_ALLOCATION_BYTES = 2**46
_SPACE_AND_COMMAS = re.compile(rb"[ \t\r\n,]*")
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
_CLOSING_BRACKET = ord("]")
_MAX_BATCH_BYTES, _MIN_BATCH_BYTES = 4 << 20, 1 << 12
"""Size of the text that is decoded in one call."""
_MAX_SINGLE_EVENTS = 1 << 14
"""Singly decoded events that are added to the tables together."""
_MAX_TIMESTAMP_NS = 2**61
"""73 years: a sum of two times still fits 64 bits."""
_PROCESS_TEXTS = ("process_name", "process_labels")
"""Names of the metadata events that describe a process."""
_MEMORY_DTYPES = (np.int64, np.int64, np.int64, np.int64, np.int64, np.int32, np.int32)
"""Dtypes of the columns of `MemoryEvents`."""
DEVICE_ROW_DTYPES, WAIT_ROW_DTYPES = (*DEVICE_DTYPES, np.int32, np.int32), (*WAIT_DTYPES, np.int32)
"""Dtypes of the columns that scanners fill: those of the tables, then the process and, of device rows, the category."""

Pid = int | str


class Origins(NamedTuple):
    """Processes and categories of the rows of `Tables`.

    `device_process`, `wait_process`: index into `processes` of each row; `processes`: (pid, rank in the event's args,
    -1 if absent); `thread_pids`: pid of each thread; `texts`: pid -> names and labels in the file's metadata.
    `device_category`: -1 for rows of a known category, else twice the index into `categories`, plus 1 if the event
    names a stream.
    """

    device_process: I32
    wait_process: I32
    device_category: I32
    processes: tuple[tuple[Pid, int], ...]
    thread_pids: tuple[Pid, ...]
    categories: tuple[str, ...]
    texts: dict[Pid, list[str]]


class Tables(NamedTuple):
    """The tables of a document's events. `lanes` and `shapes` are raw JSON from the file; `dropped`: number of events
    without a readable time; `memory`: in the file's order."""

    host: HostTable
    device: DeviceTable
    waits: StreamWaits
    memory: MemoryEvents
    origins: Origins
    names: tuple[str, ...]
    lanes: tuple[bytes, ...]
    shapes: tuple[bytes, ...]
    dropped: int


class Rows:
    """The scanner in Python: the `Scanner` protocol, and `tables` for the result. `entries`: number of events read;
    `dropped`: number of those that were left out for an unreadable time."""

    def __init__(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """`groups`: name of a process group -> its description in the trace's header."""
        self.groups = groups
        self.entries = self.dropped = 0
        # Threads are keyed by (pid, tid), processes by (pid, rank in the args, -1 if absent), lanes and shapes by JSON.
        self._names, self._threads, self._lanes, self._shapes = TextIndex(), TextIndex(), TextIndex(), TextIndex()
        self._processes, self._categories = TextIndex(), TextIndex()
        self._process_texts: dict[Pid, list[str]] = {}
        self._host, self._device = ColumnBuilder(HOST_DTYPES), ColumnBuilder(DEVICE_ROW_DTYPES)
        self._waits = ColumnBuilder(WAIT_ROW_DTYPES)
        self._memory, self._memory_threads = ColumnBuilder(_MEMORY_DTYPES), TextIndex()
        self._batch_bytes = _MAX_BATCH_BYTES
        self._text_without_boundary = b""
        """The last text in which no event was followed by another, so that it is not searched again."""
        self._single_events: list[ChromeEvent] = []
        """Singly decoded events that are not in the tables yet: adding one row costs as much as adding many."""
        self._single_memory: list[ChromeEvent] = []
        """Those of them that are allocations or frees, whose order among other events does not matter."""

    def feed(self, text: bytes, at: int) -> tuple[int, StopReason]:
        """Reads the events of `text` from byte `at` on; returns the position after the last one and why the scan
        stopped. Decodes batches of up to `_batch_bytes`, each of which ends between two events."""
        position = _skip_space(text, at)
        while position < len(text) and text[position] != _CLOSING_BRACKET:
            end = self._find_boundary(text, position)
            if not end:
                return position, StopReason.IRREGULAR
            try:
                events = decode_events(b"[%b]" % text[position:end])
            except UNREADABLE_EVENT:
                # Halve the batch, down to a minimum: most of the other events are still decoded together.
                if self._batch_bytes <= _MIN_BATCH_BYTES:
                    return position, StopReason.IRREGULAR
                self._batch_bytes = min(self._batch_bytes, max(end - position, 2 * _MIN_BATCH_BYTES)) // 2
                continue
            self._batch_bytes = min(2 * self._batch_bytes, _MAX_BATCH_BYTES)
            self.entries += len(events)
            self._add_events([*self._single_events, *events])
            self._single_events = []
            position = _skip_space(text, end)
        return (position + 1, StopReason.CLOSED) if position < len(text) else (position, StopReason.NEED_MORE)

    def add(self, event: ChromeEvent) -> None:
        """Adds an event that was decoded singly; it is in the tables once `tables` is called."""
        self.entries += 1
        if _is_memory_event(event):
            self._single_memory.append(event)
            if len(self._single_memory) >= _MAX_SINGLE_EVENTS:
                self._flush_memory()
            return
        self._single_events.append(event)
        if len(self._single_events) >= _MAX_SINGLE_EVENTS:
            self._flush_single()

    def tables(self) -> Tables:
        """The tables of all events that were added."""
        self._flush_single()
        *device, device_process, device_category = self._device.columns()
        *waits, wait_process = self._waits.columns()
        return Tables(
            host=HostTable._make([*self._host.columns(), self._host.collectives]),
            device=DeviceTable._make([*device, self._device.collectives]),
            waits=StreamWaits(*waits),
            memory=self._memory_events(),
            origins=Origins(
                device_process=device_process,
                wait_process=wait_process,
                device_category=device_category,
                processes=tuple(self._processes.texts()),
                thread_pids=tuple(pid for pid, _ in self._threads.texts()),
                categories=tuple(self._categories.texts()),
                texts=self._process_texts,
            ),
            names=tuple(self._names.texts()),
            lanes=tuple(self._lanes.texts()),
            shapes=tuple(self._shapes.texts()),
            dropped=self.dropped,
        )

    def _find_boundary(self, text: bytes, begin: int) -> int:
        """The position at which a batch that starts at `begin` ends: after the last event that is followed by another
        within `_batch_bytes`, or, if that range has none, after the first such event of the text; 0 if there is none.
        """
        if text is self._text_without_boundary:
            return 0
        limit = min(len(text), begin + self._batch_bytes)
        # The end of the range almost always contains a boundary; only if not, the whole range is searched.
        for first in (max(begin, limit - _MIN_BATCH_BYTES), begin):
            ends = [match.start() for match in _BETWEEN_EVENTS.finditer(text, first, limit)]
            if ends:
                return ends[-1] + 1
        if beyond := _BETWEEN_EVENTS.search(text, begin):
            return beyond.start() + 1
        self._text_without_boundary = text
        return 0

    def _flush_single(self) -> None:
        events, self._single_events = self._single_events, []
        self._add_events(events)

    def _flush_memory(self) -> None:
        events, self._single_memory = self._single_memory, []
        self._add_memory_events(events)

    def _add_events(self, events: list[ChromeEvent]) -> None:
        """Adds the complete events (`ph` X) with a readable time to the host or the device table, except those of a
        category without work, and instants (`ph` i) of memory to theirs; keeps the names of processes from metadata
        events (`ph` M). Counts events with an unreadable time in `dropped`."""
        for event in events:
            if event.ph == "M" and event.name in _PROCESS_TEXTS:
                self._add_process_text(event)
        if memory_events := [event for event in events if _is_memory_event(event)]:
            self._flush_memory()
            self._add_memory_events(memory_events)
        code_of = {cat: code_of_category(cat) for cat in {event.cat for event in events}}
        # An event with neither a category nor a time holds no work.
        events = [
            event for event in events if event.ph == "X" and code_of[event.cat] != NO_WORK and (event.cat or event.ts)
        ]
        if not events:
            return
        start, is_readable = _parse_times_ns([event.ts for event in events])
        duration, is_valid_duration = _parse_times_ns([event.dur or b"0" for event in events])
        is_readable &= is_valid_duration & (duration >= 0)
        if not is_readable.all():
            self.dropped += int((~is_readable).sum())
            events = [event for event, keep in zip(events, is_readable) if keep]
            start, duration = start[is_readable], duration[is_readable]
        code = np.array([code_of[event.cat] for event in events], np.int8)
        stop = start + duration
        name = self._names.add_all([event.name if type(event.name) is str else str(event.name) for event in events])
        for is_selected, add in (
            (code < FIRST_DEVICE_CODE, self._add_host_events),
            (code >= FIRST_DEVICE_CODE, self._add_device_events),
        ):
            rows = np.flatnonzero(is_selected)
            if len(rows):
                add([events[row] for row in rows.tolist()], start[rows], stop[rows], name[rows], code[rows])

    def _add_memory_events(self, events: list[ChromeEvent]) -> None:
        """Adds allocations and frees to their table, in the file's order; those of impossible sizes are left out."""
        time, is_readable = _parse_times_ns([event.ts for event in events])
        self.dropped += int((~is_readable).sum())
        all_args = decode_all_args([event.args for event in events], MemoryArgs)
        thread = self._memory_threads.add_all([(event.pid, event.tid) for event in events])
        columns = (
            (
                args.bytes,
                max(args.address, -1),
                max(args.total, -1),
                max(args.reserved, -1),
                args.device if args.device_type and 0 <= args.device < 2**31 else -1,
            )
            for args in all_args
        )
        size, address, total, reserved, device = np.array(list(columns), np.int64).reshape(-1, 5).T
        rows = is_readable & (size != 0) & (np.abs(size) < _MAX_ALLOCATION_BYTES)
        columns_of_rows = (time, size, address, total, reserved, device, thread)
        self._memory.extend([column[rows] for column in columns_of_rows])

    def _memory_events(self) -> MemoryEvents:
        """The table of allocations and frees; numbers their threads."""
        self._flush_memory()
        time, size, address, total, reserved, device, thread = self._memory.columns()
        number_of_thread = self._threads.add_all(self._memory_threads.texts())
        return MemoryEvents(
            time=time, size=size, address=address, total=total, reserved=reserved, device=device,
            thread=number_of_thread[thread] if len(thread) else thread,
        )  # fmt: skip

    def _add_process_text(self, event: ChromeEvent) -> None:
        """Keeps the name or label that a metadata event gives its process, and registers the rank that it states."""
        args = decode_args(event.args)
        self._process_texts.setdefault(event.pid, []).extend(
            text for key in ("name", "labels") if isinstance(text := args.get(key), str)
        )
        if _is_rank(rank := args.get("rank")):
            self._processes.add_all([(event.pid, rank)])

    def _add_host_events(self, events: list[ChromeEvent], start: I64, stop: I64, name: I32, kind: I8) -> None:
        """Adds host spans to the host table, with the ids and shapes from their args. `start`, `stop` (ns), `name` (its
        number) and `kind` (`events.OP`, `CALL`, `NOTE` or `PYTHON`; changed in place) of each event."""
        thread = self._threads.add_all([(event.pid, event.tid) for event in events])
        # In 2021 annotations were operators too.
        kind[(kind == OP) & self._matches_name(name, lambda text: text.startswith(_ANNOTATIONS))] = NOTE
        event_count = len(events)
        correlation, external, seq = (np.full(event_count, -1, np.int64) for _ in range(3))  # -1: absent
        backward, shape = np.zeros(event_count, np.int8), np.full(event_count, -1, np.int32)
        calls = np.flatnonzero(kind == CALL)
        call_args = decode_all_args([events[row].args for row in calls.tolist()], CallArgs)
        correlation[calls] = [args.correlation for args in call_args]
        self._record_stated_ranks([events[row] for row in calls.tolist()], call_args)
        ops = np.flatnonzero(kind == OP)
        op_args = decode_all_args([events[row].args for row in ops.tolist()], OpArgs)
        external[ops] = [args.external_id for args in op_args]
        seq[ops] = [args.seq for args in op_args]
        backward[ops] = [args.forward_thread > 0 for args in op_args]
        self._record_stated_ranks([events[row] for row in ops.tolist()], op_args)
        ops_with_shapes = [
            (row, args) for row, args in zip(ops.tolist(), op_args) if args.dims or args.types or args.values
        ]
        if ops_with_shapes:
            texts = [b"%b\0%b\0%b" % (args.dims, args.types, args.values) for _, args in ops_with_shapes]
            shape[[row for row, _ in ops_with_shapes]] = self._shapes.add_all(texts)
        collectives = (kind == NOTE) & self._matches_name(name, names_collective)
        self._add_collectives(self._host, events, np.flatnonzero(collectives))
        self._host.extend((start, stop, name, thread, kind, correlation, external, seq, backward, shape))

    def _record_stated_ranks(self, events: list[ChromeEvent], all_args: Sequence[CallArgs | OpArgs]) -> None:
        """Registers each (process, rank) that the args of host events state, for `Origins.processes`."""
        stated_ranks = {(event.pid, args.rank) for event, args in zip(events, all_args) if _is_rank(args.rank)}
        if stated_ranks:
            self._processes.add_all(list(stated_ranks))

    def _add_device_events(self, events: list[ChromeEvent], start: I64, stop: I64, name: I32, code: I8) -> None:
        """Adds device work to the device table and stream waits to theirs. `start`, `stop` (ns), `name` (its number)
        and `code` (as `code_of_category` returns it: `STREAM_WAIT_CODE`, or `FIRST_DEVICE_CODE` plus a kind of device
        work) of each event."""
        all_args = decode_all_args([event.args for event in events], DeviceArgs)
        device = np.array([args.device if -1 <= args.device < 2**31 else -1 for args in all_args], np.int32)
        lane = self._lanes.add_all([_stream_json(args, event) for args, event in zip(all_args, events)])
        process = self._processes.add_all(
            [(event.pid, args.rank if _is_rank(args.rank) else -1) for args, event in zip(all_args, events)]
        )
        # Rows below are positions in `events`; other synchronisation events than stream waits are left out.
        waits = [
            row
            for row in np.flatnonzero(code == STREAM_WAIT_CODE).tolist()
            if all_args[row].wait_on >= 0 and str(events[row].name) == _STREAM_WAIT
        ]
        if waits:
            correlation = np.array([all_args[row].correlation for row in waits], np.int64)
            awaited_lane = self._lanes.add_all([b"%d" % all_args[row].wait_on for row in waits])
            self._waits.extend((correlation, device[waits], lane[waits], awaited_lane, process[waits]))
        work = np.flatnonzero(code != STREAM_WAIT_CODE)
        events, all_args = [events[row] for row in work.tolist()], [all_args[row] for row in work.tolist()]
        kind = code[work] - np.int8(FIRST_DEVICE_CODE)
        category = np.full(len(work), -1, np.int32)
        unknown = np.flatnonzero(kind == UNKNOWN_WORK).tolist()
        if unknown:
            numbers = self._categories.add_all([events[row].cat or "" for row in unknown])
            # The lowest bit is whether the event names a stream, see `Origins.device_category`.
            category[unknown] = 2 * numbers + np.array([bool(all_args[row].stream) for row in unknown])
        collectives = [row for row, args in enumerate(all_args) if args.collective and kind[row] == KERNEL]
        self._add_collectives(self._device, events, collectives)
        columns = (
            (
                args.correlation,
                args.external_id if args.external_id >= 0 else args.old_external_id,
                args.bytes,
                args.occupancy if 0 <= args.occupancy <= 100 else -1,
            )
            for args in all_args
        )
        correlation, external, size, occupancy = np.array(list(columns), np.int64).reshape(-1, 4).T
        self._device.extend(
            (start[work], stop[work], name[work], lane[work], device[work], kind, correlation, external,
             size, occupancy, process[work], category)
        )  # fmt: skip

    def _matches_name(self, number: I32, predicate: Callable[[str], bool]) -> NDArray[np.bool_]:
        """`predicate` of each row's name; called once for each distinct name. `number`: number of each row's name."""
        texts = self._names.texts()
        matches = {index: predicate(texts[index]) for index in np.flatnonzero(np.bincount(number)).tolist()}
        by_number = np.array([matches.get(index, False) for index in range(max(matches, default=-1) + 1)], bool)
        return by_number[number]

    def _add_collectives(self, table: ColumnBuilder, events: list[ChromeEvent], rows: Iterable[int]) -> None:
        """Decodes the collectives of the events at positions `rows`, which are to be the next rows of the table."""
        for row in rows:
            name, args = str(events[row].name), decode_args(events[row].args)
            table.collectives[table.count + row] = collective_from_args(name, args, self.groups)


def _is_memory_event(event: ChromeEvent) -> bool:
    """Whether an event is an allocation or a free."""
    return event.ph == "i" and event.name == _MEMORY


def _parse_times_ns(times: Sequence[msgspec.Raw | bytes]) -> tuple[I64, NDArray[np.bool_]]:
    """Parses times in us, given as raw JSON: ns, and whether each can be read and is at most 73 years from 0."""
    ns, is_valid = parse_timestamps_ns(list(times))
    return ns, is_valid & (ns > -_MAX_TIMESTAMP_NS) & (ns < _MAX_TIMESTAMP_NS)


def _is_rank(value: object) -> TypeGuard[int]:
    """Whether an argument is a rank: an integer from 0 on."""
    return type(value) is int and 0 <= value < 2**31


def _skip_space(text: bytes, position: int) -> int:
    """The position after white space and commas."""
    gap = _SPACE_AND_COMMAS.match(text, position)
    return gap.end() if gap else position


def _stream_json(args: DeviceArgs, event: ChromeEvent) -> bytes:
    """The stream of a device event as JSON: from its args, or, in files of 2021, its thread id."""
    return bytes(args.stream) if args.stream else msgspec.json.encode(event.tid)
