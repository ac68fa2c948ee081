"""Reads rocprofv3's pftrace (`rocprofv3 --output-format pftrace`): a Perfetto trace of slices, in protocol buffers.

Schema: perfetto's trace_packet.proto, track_event.proto, track_descriptor.proto, interned_data.proto and
clock_snapshot.proto (https://perfetto.dev/docs/reference/trace-packet-proto), and the categories, tracks and debug
annotations that rocprofiler-sdk writes. A begin event and the end event that follows it on its track are one slice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadFile
from trainyard.events import COPY, KERNEL, Events
from trainyard.formats.protobuf import (
    LENGTH,
    VARINT,
    Malformed,
    Value,
    as_double,
    as_int64,
    as_message,
    as_text,
    fields,
)
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.annotate import add_call, add_range, copy_name
from trainyard.trace.readers.gather import Gather, experimental
from trainyard.trace.readers.recognise import recognise

NOTE = experimental(
    "rocprofv3 pftrace files",
    "Unproven: the names of categories, and the track names that identify streams and devices.",
)
_PACKET_FIELD = 1
# Fields of a TracePacket.
_CLOCKS_FIELD, _TIME_FIELD, _SEQUENCE_FIELD, _EVENT_FIELD, _INTERNED_FIELD, _FLAGS_FIELD, _CLEARED_FIELD = (
    6,
    8,
    10,
    11,
    12,
    13,
    41,
)
_COMPRESSED_FIELD, _CLOCK_FIELD, _DEFAULTS_FIELD, _TRACK_FIELD = 50, 58, 59, 60
_SLICE_BEGIN, _SLICE_END = 1, 2
_BOOT_CLOCK = 6
_SEQUENCE_CLOCKS = range(64, 128)
"""Clocks of one sequence, defined by its own clock snapshots."""
_APIS = ("hip_api", "hsa_api", "rccl_api")
_CATEGORIES = (*_APIS, "marker_api", "kernel_dispatch", "memory_copy")
_LANE = re.compile(r"(STREAM|QUEUE) \[(\d+)\]")
_LAST_NUMBER = re.compile(r"(\d+)\D*\Z")


class _TraceClock(NamedTuple):
    """Trace time = `at` + (timestamp - `stamp`) * `unit`; the timestamps of an incremental clock are differences."""

    at: int
    stamp: int
    unit: int
    incremental: bool


class _Slice(NamedTuple):
    """A slice that has begun, at `start` ns of trace time. `facts`: its debug annotations by name."""

    category: str
    name: str
    start: int
    facts: dict[str, int | str]


class _Sequence:
    """State of one writer's packets. `names`: (table, id) -> interned text, see `_intern`; `clocks`: id -> clock;
    `clock`, `track`: the defaults."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self.clocks: dict[int, _TraceClock] = {}
        self.clock = _BOOT_CLOCK
        self.track = 0

    def time(self, stamp: int, clock: int) -> int:
        """Converts a timestamp to trace time in ns."""
        conversion = self.clocks.get(clock)
        if conversion is None:
            return stamp
        if not conversion.incremental:
            return conversion.at + (stamp - conversion.stamp) * conversion.unit
        at = conversion.at + stamp * conversion.unit
        self.clocks[clock] = conversion._replace(at=at)
        return at


class Pftrace:
    """The `Reader` of rocprofv3's pftrace. `ReadOptions.mark` is the prefix of the roctx ranges that are steps."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "pftrace"

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each device with work. Raises `BadFile`."""
        reading = _PftraceRows(path, how.mark)
        lost: list[str] = []
        for field, wire, value in fields(memoryview(whole_files.contents(path, how.limit)), lost):
            if field == _PACKET_FIELD and wire == LENGTH:
                reading.add_packet(as_message(value))
        if not reading.slices:
            reason = f" ({lost[0]})" if lost else ""
            raise BadFile(
                f"{path}: this Perfetto trace holds no slice of rocprofv3{reason}.", "Did rocprofv3 write it?"
            )
        return reading.rows.events([NOTE, *reading.describe_losses(lost)])


class _PftraceRows:
    """The rows of one file, packet by packet. Counts: `slices` read, `unknown_slices` of other categories, `damaged`
    and `compressed` packets, `unmatched_ends` of slices. `sequences`: by id; `tracks`: id -> name; `open_slices`: track
    id -> slices without an end so far, outermost first."""

    def __init__(self, path: Path, marks: str) -> None:
        """`marks`: prefix of the slices that mark steps."""
        self.rows = Gather(path.name, marks)
        self.slices = self.unknown_slices = self.damaged = self.compressed = self.unmatched_ends = 0
        self.sequences: dict[int, _Sequence] = {}
        self.tracks: dict[int, str] = {}
        self.open_slices: dict[int, list[_Slice]] = {}

    def describe_losses(self, lost: list[str]) -> list[str]:
        """Notes on what was left out. `lost`: why the end of the file could not be read, if so."""
        unfinished = sum(len(stack) for stack in self.open_slices.values())
        losses = (
            (self.damaged, "damaged packets were left out"),
            (self.compressed, "compressed packets were left out: this reader does not unpack them"),
            (self.unknown_slices, "slices of other categories than rocprofv3's were left out"),
            (self.unmatched_ends + unfinished, "slices without a beginning or an end were left out"),
        )
        cut = [f"The file is cut short: {lost[0]}. The part before that was read."] if lost else []
        return [*cut, *(f"{count:,} {message}." for count, message in losses if count)]

    def add_packet(self, packet: memoryview) -> None:
        try:
            self.read(packet)
        except Malformed:
            self.damaged += 1

    def read(self, packet: memoryview) -> None:
        """Reads a packet's parts in the order in which they depend on each other: state, clocks, tracks, the event."""
        values: dict[int, Value] = {field: value for field, _, value in fields(packet)}
        ident = as_int64(values.get(_SEQUENCE_FIELD, 0))
        sequence = self.sequences.setdefault(ident, _Sequence())
        if as_int64(values.get(_FLAGS_FIELD, 0)) & 1 or as_int64(values.get(_CLEARED_FIELD, 0)):
            sequence = self.sequences[ident] = _Sequence()
        self.compressed += _COMPRESSED_FIELD in values
        if _DEFAULTS_FIELD in values:
            _read_defaults(as_message(values[_DEFAULTS_FIELD]), sequence)
        if _INTERNED_FIELD in values:
            _intern(as_message(values[_INTERNED_FIELD]), sequence)
        if _CLOCKS_FIELD in values:
            _read_clock_snapshot(as_message(values[_CLOCKS_FIELD]), sequence)
        if _TRACK_FIELD in values:
            self.add_track(as_message(values[_TRACK_FIELD]))
        if _TIME_FIELD in values:
            clock = as_int64(values[_CLOCK_FIELD]) if _CLOCK_FIELD in values else sequence.clock
            time = sequence.time(as_int64(values[_TIME_FIELD]), clock)
            if _EVENT_FIELD in values:
                self.add_event(as_message(values[_EVENT_FIELD]), sequence, time)

    def add_track(self, descriptor: memoryview) -> None:
        """Keeps the name of a track."""
        uuid, name = 0, ""
        for field, _, value in fields(descriptor):
            if field == 1:
                uuid = as_int64(value)
            elif field in (2, 10):
                name = as_text(value)
        self.tracks[uuid] = name or self.tracks.get(uuid, "")

    def add_event(self, event: memoryview, sequence: _Sequence, time: int) -> None:
        """Adds the begin or the end of a slice, at `time` ns of trace time."""
        kind, track, name, category = 0, sequence.track, "", ""
        annotations: list[memoryview] = []
        for field, _, value in fields(event):
            if field == 9:
                kind = as_int64(value)
            elif field == 11:
                track = as_int64(value)
            elif field == 23:
                name = as_text(value)
            elif field == 10:
                name = sequence.names.get((2, as_int64(value)), "")
            elif field == 22:
                category = as_text(value)
            elif field == 3 and not isinstance(value, memoryview):
                category = sequence.names.get((1, value), "")
            elif field == 4:
                annotations.append(as_message(value))
        stack = self.open_slices.setdefault(track, [])
        if kind == _SLICE_BEGIN:
            facts = dict(_decode_annotation(annotation, sequence) for annotation in annotations)
            stack.append(_Slice(category=category, name=name, start=time, facts=facts))
        elif kind == _SLICE_END:
            if stack:
                self.add_slice(stack.pop(), track, time)
            else:
                self.unmatched_ends += 1

    def add_slice(self, part: _Slice, track: int, stop: int) -> None:
        """Adds a complete slice as a call, an annotation, a kernel or a copy, by its category."""
        if part.category not in _CATEGORIES:
            self.unknown_slices += 1
            return
        self.slices += 1
        thread, correlation = part.facts.get("tid", track), part.facts.get("corr_id", -1)
        correlation = correlation if isinstance(correlation, int) else -1
        if part.category in _APIS:
            add_call(self.rows, part.name, thread, part.start, stop, correlation)
        elif part.category == "marker_api":
            add_range(self.rows, part.name, thread, part.start, stop)
        elif part.category == "kernel_dispatch":
            device = _device_number(part.facts.get("agent"))
            self.rows.work(part.name, KERNEL, self.lane(track), device, part.start, stop, correlation=correlation)
        else:
            name = part.name.upper()
            source, target = ("host" if "HOST_TO" in name else "device"), ("host" if "TO_HOST" in name else "device")
            device = _device_number(part.facts.get("dst_agent" if target == "device" else "src_agent"))
            size = part.facts.get("copy_bytes", -1)
            size = size if isinstance(size, int) else -1
            self.rows.work(
                copy_name(source, target),
                COPY,
                self.lane(track),
                device,
                part.start,
                stop,
                correlation=correlation,
                size=size,
            )

    def lane(self, track: int) -> str:
        """`stream 3`: the copies and the kernels of a stream are on separate tracks."""
        name = self.tracks.get(track, "")
        match = _LANE.search(name)
        return f"{match[1].lower()} {match[2]}" if match else name or f"track {track}"


def _read_defaults(defaults: memoryview, sequence: _Sequence) -> None:
    """Sets the clock and the track of events that name none."""
    for field, wire, value in fields(defaults):
        if field == _CLOCK_FIELD and wire == VARINT:
            sequence.clock = as_int64(value)
        elif field == _EVENT_FIELD:
            sequence.track = next((as_int64(uuid) for inner, _, uuid in fields(as_message(value)) if inner == 11), 0)


def _intern(interned: memoryview, sequence: _Sequence) -> None:
    """Adds interned categories (1), names (2), annotation names (3) and annotation texts (29)."""
    for table, wire, value in fields(interned):
        if table in (1, 2, 3, 29) and wire == LENGTH:
            entry = {field: inner for field, _, inner in fields(as_message(value))}
            sequence.names[table, as_int64(entry.get(1, 0))] = as_text(entry.get(2, 0))


def _read_clock_snapshot(snapshot: memoryview, sequence: _Sequence) -> None:
    """Relates the sequence's own clocks to the trace's clock by a snapshot of both at one moment."""
    clocks: list[dict[int, int]] = []
    for field, wire, value in fields(snapshot):
        if field == 1 and wire == LENGTH:
            clocks.append({inner: as_int64(number) for inner, _, number in fields(as_message(value))})
    shared_ns_by_clock = {
        clock.get(1, 0): clock.get(2, 0) for clock in clocks if clock.get(1, 0) not in _SEQUENCE_CLOCKS
    }
    trace_ns = shared_ns_by_clock.get(_BOOT_CLOCK, next(iter(shared_ns_by_clock.values()), None))
    for clock in clocks:
        ident, stamp, unit = clock.get(1, 0), clock.get(2, 0), clock.get(4, 0) or 1
        if ident in _SEQUENCE_CLOCKS:
            sequence_ns = stamp * unit
            sequence.clocks[ident] = _TraceClock(
                at=sequence_ns if trace_ns is None else trace_ns,
                stamp=stamp,
                unit=unit,
                incremental=bool(clock.get(3, 0)),
            )


def _decode_annotation(annotation: memoryview, sequence: _Sequence) -> tuple[str, int | str]:
    """(name, value) of a debug annotation; value -1 if it is of another type."""
    name, value = "", -1
    for field, _, raw in fields(annotation):
        if field == 10:
            name = as_text(raw)
        elif field == 1:
            name = sequence.names.get((3, as_int64(raw)), "")
        elif field in (3, 4, 7):
            value = as_int64(raw)
        elif field == 5:
            value = int(as_double(raw)) if abs(as_double(raw)) < 2**62 else -1
        elif field == 6:
            value = as_text(raw)
        elif field == 17:
            value = sequence.names.get((29, as_int64(raw)), "")
    return name, value


def _device_number(agent: int | str | None) -> int:
    """The device number in `Agent 4`, `GPU-0` or a bare number; -1 if there is none."""
    if isinstance(agent, int):
        return agent
    match = _LAST_NUMBER.search(agent or "")
    return int(match[1]) if match and len(match[1]) < 9 else -1
