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
    first_message,
)
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import whole_files
from trainyard.trace.readers.annotate import add_call, add_range, copy_name
from trainyard.trace.readers.gather import Gather, experimental

NOTE = experimental(
    "rocprofv3 pftrace files",
    "Unproven: the names of categories, and the track names that identify streams and devices.",
)
_PACKET = 1
# Fields of a TracePacket.
_CLOCKS, _TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED = 6, 8, 10, 11, 12, 13, 41
_COMPRESSED, _CLOCK, _DEFAULTS, _TRACK = 50, 58, 59, 60
_BEGIN, _END = 1, 2
_BOOT_CLOCK = 6
_OWN_CLOCKS = range(64, 128)
"""Clocks of one sequence, defined by its own clock snapshots."""
_APIS = ("hip_api", "hsa_api", "rccl_api")
_CATEGORIES = (*_APIS, "marker_api", "kernel_dispatch", "memory_copy")
_LANE = re.compile(r"(STREAM|QUEUE) \[(\d+)\]")
_NUMBER = re.compile(r"(\d+)\D*\Z")


class _TraceClock(NamedTuple):
    """Trace time = `at` + (timestamp - `stamp`) * `unit`; the timestamps of an incremental clock are differences."""

    at: int
    stamp: int
    unit: int
    incremental: bool


class _Slice(NamedTuple):
    category: str
    name: str
    start: int
    facts: dict[str, int | str]


class _Sequence:
    """State of one writer's packets: interned names, defaults, clocks."""

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
        """Whether the file begins with a packet that has a time or a sequence number: no other protocol-buffer file
        read here begins with those fields."""
        packet = first_message(memoryview(whole_files.head(path)), _PACKET)
        present = {(field, wire) for field, wire, _ in fields(packet, [])} if packet else set()
        return bool(present & {(_TIME, VARINT), (_SEQUENCE, VARINT)})

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns one `Events` for each device with work. Raises `BadFile`."""
        reading = _PftraceReading(path, how.mark)
        lost: list[str] = []
        for field, wire, value in fields(memoryview(whole_files.contents(path, how.limit)), lost):
            if field == _PACKET and wire == LENGTH:
                reading.packet(as_message(value))
        if not reading.slices:
            reason = f" ({lost[0]})" if lost else ""
            raise BadFile(
                f"{path}: this Perfetto trace holds no slice of rocprofv3{reason}.", "Did rocprofv3 write it?"
            )
        return reading.rows.events([NOTE, *reading.losses(lost)])


class _PftraceReading:
    """The rows of one file, packet by packet."""

    def __init__(self, path: Path, marks: str) -> None:
        self.rows = Gather(path.name, marks)
        self.slices = self.others = self.damaged = self.compressed = self.ends = 0
        self.sequences: dict[int, _Sequence] = {}
        self.tracks: dict[int, str] = {}
        self.open: dict[int, list[_Slice]] = {}

    def losses(self, lost: list[str]) -> list[str]:
        unfinished = sum(len(stack) for stack in self.open.values())
        losses = (
            (self.damaged, "damaged packets were left out"),
            (self.compressed, "compressed packets were left out: this reader does not unpack them"),
            (self.others, "slices of other categories than rocprofv3's were left out"),
            (self.ends + unfinished, "slices without a beginning or an end were left out"),
        )
        cut = [f"The file is cut short: {lost[0]}. The part before that was read."] if lost else []
        return [*cut, *(f"{count:,} {message}." for count, message in losses if count)]

    def packet(self, packet: memoryview) -> None:
        try:
            self.read(packet)
        except Malformed:
            self.damaged += 1

    def read(self, packet: memoryview) -> None:
        """Reads a packet's parts in the order in which they depend on each other: state, clocks, tracks, the event."""
        values: dict[int, Value] = {field: value for field, _, value in fields(packet)}
        ident = as_int64(values.get(_SEQUENCE, 0))
        sequence = self.sequences.setdefault(ident, _Sequence())
        if as_int64(values.get(_FLAGS, 0)) & 1 or as_int64(values.get(_CLEARED, 0)):
            sequence = self.sequences[ident] = _Sequence()
        self.compressed += _COMPRESSED in values
        if _DEFAULTS in values:
            _defaults(as_message(values[_DEFAULTS]), sequence)
        if _INTERNED in values:
            _intern(as_message(values[_INTERNED]), sequence)
        if _CLOCKS in values:
            _snapshot(as_message(values[_CLOCKS]), sequence)
        if _TRACK in values:
            self.add_track(as_message(values[_TRACK]))
        if _TIME in values:
            clock = as_int64(values[_CLOCK]) if _CLOCK in values else sequence.clock
            time = sequence.time(as_int64(values[_TIME]), clock)
            if _EVENT in values:
                self.add_event(as_message(values[_EVENT]), sequence, time)

    def add_track(self, descriptor: memoryview) -> None:
        uuid, name = 0, ""
        for field, _, value in fields(descriptor):
            if field == 1:
                uuid = as_int64(value)
            elif field in (2, 10):
                name = as_text(value)
        self.tracks[uuid] = name or self.tracks.get(uuid, "")

    def add_event(self, event: memoryview, sequence: _Sequence, time: int) -> None:
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
        stack = self.open.setdefault(track, [])
        if kind == _BEGIN:
            facts = dict(_annotation(annotation, sequence) for annotation in annotations)
            stack.append(_Slice(category, name, time, facts))
        elif kind == _END:
            if stack:
                self.add_slice(stack.pop(), track, time)
            else:
                self.ends += 1

    def add_slice(self, part: _Slice, track: int, stop: int) -> None:
        if part.category not in _CATEGORIES:
            self.others += 1
            return
        self.slices += 1
        thread, correlation = part.facts.get("tid", track), part.facts.get("corr_id", -1)
        correlation = correlation if isinstance(correlation, int) else -1
        if part.category in _APIS:
            add_call(self.rows, part.name, thread, part.start, stop, correlation)
        elif part.category == "marker_api":
            add_range(self.rows, part.name, thread, part.start, stop)
        elif part.category == "kernel_dispatch":
            device = _device(part.facts.get("agent"))
            self.rows.work(part.name, KERNEL, self.lane(track), device, part.start, stop, correlation=correlation)
        else:
            name = part.name.upper()
            source, target = ("host" if "HOST_TO" in name else "device"), ("host" if "TO_HOST" in name else "device")
            device = _device(part.facts.get("dst_agent" if target == "device" else "src_agent"))
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


def _defaults(defaults: memoryview, sequence: _Sequence) -> None:
    for field, wire, value in fields(defaults):
        if field == _CLOCK and wire == VARINT:
            sequence.clock = as_int64(value)
        elif field == _EVENT:
            sequence.track = next((as_int64(uuid) for inner, _, uuid in fields(as_message(value)) if inner == 11), 0)


def _intern(interned: memoryview, sequence: _Sequence) -> None:
    """Adds interned categories (1), names (2), annotation names (3) and annotation texts (29)."""
    for table, wire, value in fields(interned):
        if table in (1, 2, 3, 29) and wire == LENGTH:
            entry = {field: inner for field, _, inner in fields(as_message(value))}
            sequence.names[table, as_int64(entry.get(1, 0))] = as_text(entry.get(2, 0))


def _snapshot(snapshot: memoryview, sequence: _Sequence) -> None:
    """Relates the sequence's own clocks to the trace's clock by a snapshot of both at one moment."""
    clocks: list[dict[int, int]] = []
    for field, wire, value in fields(snapshot):
        if field == 1 and wire == LENGTH:
            clocks.append({inner: as_int64(number) for inner, _, number in fields(as_message(value))})
    shared = {clock.get(1, 0): clock.get(2, 0) for clock in clocks if clock.get(1, 0) not in _OWN_CLOCKS}
    at = shared.get(_BOOT_CLOCK, next(iter(shared.values()), None))
    for clock in clocks:
        ident, stamp, unit = clock.get(1, 0), clock.get(2, 0), clock.get(4, 0) or 1
        if ident in _OWN_CLOCKS:
            own_ns = stamp * unit
            sequence.clocks[ident] = _TraceClock(own_ns if at is None else at, stamp, unit, bool(clock.get(3, 0)))


def _annotation(annotation: memoryview, sequence: _Sequence) -> tuple[str, int | str]:
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


def _device(agent: int | str | None) -> int:
    """The device number in `Agent 4`, `GPU-0` or a bare number; -1 if there is none."""
    if isinstance(agent, int):
        return agent
    match = _NUMBER.search(agent or "")
    return int(match[1]) if match and len(match[1]) < 9 else -1
