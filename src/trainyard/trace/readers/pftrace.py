"""Reads rocprofv3's pftrace (`rocprofv3 --output-format pftrace`): a Perfetto trace of slices, in protocol buffers.

Schema: perfetto's trace_packet.proto, track_event.proto, track_descriptor.proto, interned_data.proto and
clock_snapshot.proto (https://perfetto.dev/docs/reference/trace-packet-proto), and the categories, tracks and debug
annotations that rocprofiler-sdk writes. A begin and the end that follows it on its track are one slice.
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
    "Unproven: the categories' names, and the tracks' names by which streams and devices are told.",
)
_PACKET = 1
# Fields of a TracePacket.
_CLOCKS, _TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED = 6, 8, 10, 11, 12, 13, 41
_COMPRESSED, _CLOCK, _DEFAULTS, _TRACK = 50, 58, 59, 60
_BEGIN, _END = 1, 2
_BOOT_CLOCK = 6
_OWN_CLOCKS = range(64, 128)
"""Clocks of one sequence, told by its own snapshots."""
_APIS = ("hip_api", "hsa_api", "rccl_api")
_CATEGORIES = (*_APIS, "marker_api", "kernel_dispatch", "memory_copy")
_LANE = re.compile(r"(STREAM|QUEUE) \[(\d+)\]")
_NUMBER = re.compile(r"(\d+)\D*\Z")


class _TraceClock(NamedTuple):
    """Trace time = `at` + (stamp - `stamp`) * `unit`; the stamps of an incremental clock add up."""

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
    """What a writer's packets refer to: names by number, defaults, clocks."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self.clocks: dict[int, _TraceClock] = {}
        self.clock = _BOOT_CLOCK
        self.track = 0

    def time(self, stamp: int, clock: int) -> int:
        """Trace time in ns."""
        known = self.clocks.get(clock)
        if known is None:
            return stamp
        if not known.incremental:
            return known.at + (stamp - known.stamp) * known.unit
        at = known.at + stamp * known.unit
        self.clocks[clock] = known._replace(at=at)
        return at


class Pftrace:
    """The `Reader` of rocprofv3's pftrace. `marks`: what the roctx ranges that are steps begin with."""

    def sniff(self, path: Path) -> bool:
        """Whether the file begins with a packet that bears a time or its writer's number: no other message read here
        has those fields."""
        packet = first_message(memoryview(whole_files.head(path)), _PACKET)
        found = {(field, wire) for field, wire, _ in fields(packet, [])} if packet else set()
        return bool(found & {(_TIME, VARINT), (_SEQUENCE, VARINT)})

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """One `Events` for each device with work. Raises `BadFile`."""
        reading = _PftraceReading(path, how.mark)
        lost: list[str] = []
        for field, wire, value in fields(memoryview(whole_files.whole(path, how.limit)), lost):
            if field == _PACKET and wire == LENGTH:
                reading.packet(as_message(value))
        if not reading.slices:
            why = f" ({lost[0]})" if lost else ""
            raise BadFile(f"{path}: no slice of rocprofv3 is in this Perfetto trace{why}.", "Was it rocprofv3's?")
        return reading.rows.events([NOTE, *reading.losses(lost)])


class _PftraceReading:
    def __init__(self, path: Path, marks: str) -> None:
        self.rows = Gather(path.name, marks)
        self.slices = self.others = self.damaged = self.compressed = self.ends = 0
        self.sequences: dict[int, _Sequence] = {}
        self.tracks: dict[int, str] = {}
        self.open: dict[int, list[_Slice]] = {}

    def losses(self, lost: list[str]) -> list[str]:
        unfinished = sum(len(stack) for stack in self.open.values())
        said = (
            (self.damaged, "damaged packets were left out"),
            (self.compressed, "compressed packets were left out: this reader does not unpack them"),
            (self.others, "slices of other categories than rocprofv3's were left out"),
            (self.ends + unfinished, "slices without a beginning or an end were left out"),
        )
        cut = [f"The file is cut short, and what was whole is read: {lost[0]}."] if lost else []
        return [*cut, *(f"{count:,} {what}." for count, what in said if count)]

    def packet(self, packet: memoryview) -> None:
        try:
            self.read(packet)
        except Malformed:
            self.damaged += 1

    def read(self, packet: memoryview) -> None:
        """Of a packet, in the order in which they bear on each other: state, clocks, descriptors, the event."""
        found: dict[int, Value] = {field: value for field, _, value in fields(packet)}
        ident = as_int64(found.get(_SEQUENCE, 0))
        sequence = self.sequences.setdefault(ident, _Sequence())
        if as_int64(found.get(_FLAGS, 0)) & 1 or as_int64(found.get(_CLEARED, 0)):
            sequence = self.sequences[ident] = _Sequence()
        self.compressed += _COMPRESSED in found
        if _DEFAULTS in found:
            _defaults(as_message(found[_DEFAULTS]), sequence)
        if _INTERNED in found:
            _intern(as_message(found[_INTERNED]), sequence)
        if _CLOCKS in found:
            _snapshot(as_message(found[_CLOCKS]), sequence)
        if _TRACK in found:
            self.add_track(as_message(found[_TRACK]))
        if _TIME in found:
            clock = as_int64(found[_CLOCK]) if _CLOCK in found else sequence.clock
            time = sequence.time(as_int64(found[_TIME]), clock)
            if _EVENT in found:
                self.add_event(as_message(found[_EVENT]), sequence, time)

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
            facts = dict(_annotation(one, sequence) for one in annotations)
            stack.append(_Slice(category, name, time, facts))
        elif kind == _END:
            if stack:
                self.add_slice(stack.pop(), track, time)
            else:
                self.ends += 1

    def add_slice(self, one: _Slice, track: int, stop: int) -> None:
        if one.category not in _CATEGORIES:
            self.others += 1
            return
        self.slices += 1
        thread, correlation = one.facts.get("tid", track), one.facts.get("corr_id", -1)
        correlation = correlation if isinstance(correlation, int) else -1
        if one.category in _APIS:
            add_call(self.rows, one.name, thread, one.start, stop, correlation)
        elif one.category == "marker_api":
            add_range(self.rows, one.name, thread, one.start, stop)
        elif one.category == "kernel_dispatch":
            device = _device(one.facts.get("agent"))
            self.rows.work(one.name, KERNEL, self.lane(track), device, one.start, stop, correlation=correlation)
        else:
            name = one.name.upper()
            source, target = ("host" if "HOST_TO" in name else "device"), ("host" if "TO_HOST" in name else "device")
            device = _device(one.facts.get("dst_agent" if target == "device" else "src_agent"))
            size = one.facts.get("copy_bytes", -1)
            self.rows.work(copy_name(source, target), COPY, self.lane(track), device, one.start, stop,
                           correlation=correlation, size=size if isinstance(size, int) else -1)  # fmt: skip

    def lane(self, track: int) -> str:
        """`stream 3`: copies and kernels of one stream have tracks of their own."""
        name = self.tracks.get(track, "")
        said = _LANE.search(name)
        return f"{said[1].lower()} {said[2]}" if said else name or f"track {track}"


def _defaults(defaults: memoryview, sequence: _Sequence) -> None:
    for field, wire, value in fields(defaults):
        if field == _CLOCK and wire == VARINT:
            sequence.clock = as_int64(value)
        elif field == _EVENT:
            sequence.track = next((as_int64(uuid) for inner, _, uuid in fields(as_message(value)) if inner == 11), 0)


def _intern(interned: memoryview, sequence: _Sequence) -> None:
    """Categories (1), names (2), annotations' names (3) and their texts (29)."""
    for table, wire, value in fields(interned):
        if table in (1, 2, 3, 29) and wire == LENGTH:
            entry = {field: inner for field, _, inner in fields(as_message(value))}
            sequence.names[table, as_int64(entry.get(1, 0))] = as_text(entry.get(2, 0))


def _snapshot(snapshot: memoryview, sequence: _Sequence) -> None:
    """Clocks of the sequence's own, laid on the trace's clock by what both showed at one moment."""
    clocks: list[dict[int, int]] = []
    for field, wire, value in fields(snapshot):
        if field == 1 and wire == LENGTH:
            clocks.append({inner: as_int64(said) for inner, _, said in fields(as_message(value))})
    shared = {clock.get(1, 0): clock.get(2, 0) for clock in clocks if clock.get(1, 0) not in _OWN_CLOCKS}
    at = shared.get(_BOOT_CLOCK, next(iter(shared.values()), None))
    for clock in clocks:
        ident, stamp, unit = clock.get(1, 0), clock.get(2, 0), clock.get(4, 0) or 1
        if ident in _OWN_CLOCKS:
            own = stamp * unit
            sequence.clocks[ident] = _TraceClock(own if at is None else at, stamp, unit, bool(clock.get(3, 0)))


def _annotation(annotation: memoryview, sequence: _Sequence) -> tuple[str, int | str]:
    name, said = "", -1
    for field, _, value in fields(annotation):
        if field == 10:
            name = as_text(value)
        elif field == 1:
            name = sequence.names.get((3, as_int64(value)), "")
        elif field in (3, 4, 7):
            said = as_int64(value)
        elif field == 5:
            said = int(as_double(value)) if abs(as_double(value)) < 2**62 else -1
        elif field == 6:
            said = as_text(value)
        elif field == 17:
            said = sequence.names.get((29, as_int64(value)), "")
    return name, said


def _device(agent: int | str | None) -> int:
    """The number in `Agent 4`, `GPU-0`, or bare; -1 where there is none."""
    if isinstance(agent, int):
        return agent
    said = _NUMBER.search(agent or "")
    return int(said[1]) if said and len(said[1]) < 9 else -1
