"""Slices of a Perfetto trace: decodes packets, sequences, clocks, interned texts and tracks.

Schema: perfetto's trace_packet.proto, track_event.proto, track_descriptor.proto, interned_data.proto and
clock_snapshot.proto (https://perfetto.dev/docs/reference/trace-packet-proto). A begin event and the end event that
follows it on its track are one slice. Instants and counters are not slices.

A sequence is the packets of one writer; they share interned texts (a text is written once and then referred to by an
id), clocks and defaults. Trace time is ns of a clock that all sequences share, the boot clock by default. Numbers in
comparisons with `field` are those of fields in the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainyard.formats.protobuf import (
    FIXED64,
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

PACKET_FIELD = 1
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
_MAX_ANCESTORS = 16


class _TraceClock(NamedTuple):
    """A clock of one sequence: trace time = `trace_ns` + (timestamp - `stamp`) * `unit`, with `unit` in ns. The
    timestamps of an incremental clock are differences from the one before, whose trace time is `trace_ns`."""

    trace_ns: int
    stamp: int
    unit: int
    incremental: bool


class Track(NamedTuple):
    """A track: its name, its parent's id, and the ids of its process and thread; 0 for none."""

    name: str = ""
    parent: int = 0
    pid: int = 0
    tid: int = 0


class Slice(NamedTuple):
    """A slice on a track from `start` to `stop` ns of trace time. `facts`: its debug annotations by name; `flow`: the
    id that it shares with other slices, such as the launch with the kernel; -1 if none."""

    category: str
    name: str
    track: int
    start: int
    stop: int
    facts: dict[str, int | str]
    flow: int = -1


class _Sequence:
    """State of one writer's packets. `names`: (table, id) -> interned text, see `_intern`; `clocks`: id -> clock;
    `clock`, `track`: the defaults."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self.clocks: dict[int, _TraceClock] = {}
        self.clock = _BOOT_CLOCK
        self.track = 0

    def time(self, stamp: int, clock: int) -> int:
        """Converts a timestamp of the clock with the id `clock` to trace time in ns; that of a clock that the sequence
        has not defined is trace time already. Advances an incremental clock."""
        conversion = self.clocks.get(clock)
        if conversion is None:
            return stamp
        if not conversion.incremental:
            return conversion.trace_ns + (stamp - conversion.stamp) * conversion.unit
        trace_ns = conversion.trace_ns + stamp * conversion.unit
        self.clocks[clock] = conversion._replace(trace_ns=trace_ns)
        return trace_ns


class PerfettoPackets:
    """Reads packets and passes each complete slice to `add_slice`. Counts: `damaged` and `compressed` packets,
    `unmatched_ends` of slices. `sequences`: by id; `tracks`: id -> track; `open_slices`: track id -> slices without an
    end so far, outermost first."""

    def __init__(self, add_slice: Callable[[Slice], None]) -> None:
        self.add_slice = add_slice
        self.damaged = self.compressed = self.unmatched_ends = 0
        self.sequences: dict[int, _Sequence] = {}
        self.tracks: dict[int, Track] = {}
        self.open_slices: dict[int, list[Slice]] = {}

    @property
    def incomplete(self) -> int:
        """The number of slices without a beginning or an end."""
        return self.unmatched_ends + sum(len(stack) for stack in self.open_slices.values())

    def process_of(self, track: int) -> int:
        """The id of a track's process, stated by the track or one that encloses it; 0 if none states it."""
        for _ in range(_MAX_ANCESTORS):
            description = self.tracks.get(track)
            if description is None or description.pid:
                return description.pid if description else 0
            track = description.parent
        return 0

    def add_packet(self, packet: memoryview) -> None:
        """Reads a packet, and passes the slice that it ends, if any, to `add_slice`; counts it if it is damaged."""
        try:
            self._read(packet)
        except Malformed:
            self.damaged += 1

    def _read(self, packet: memoryview) -> None:
        """Reads a packet's parts in the order in which they depend on each other: state, clocks, tracks, the event."""
        values: dict[int, Value] = {field: value for field, _, value in fields(packet)}
        ident = as_int64(values.get(_SEQUENCE_FIELD, 0))
        sequence = self.sequences.setdefault(ident, _Sequence())
        # Bit 0 of the flags, and the older field: the writer has cleared its state.
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
            self._add_track(as_message(values[_TRACK_FIELD]))
        if _TIME_FIELD in values:
            clock = as_int64(values[_CLOCK_FIELD]) if _CLOCK_FIELD in values else sequence.clock
            time = sequence.time(as_int64(values[_TIME_FIELD]), clock)
            if _EVENT_FIELD in values:
                self._add_event(as_message(values[_EVENT_FIELD]), sequence, time)

    def _add_track(self, descriptor: memoryview) -> None:
        """Adds a track, with its name, parent, process and thread, to `tracks`. Later descriptors of a track complete
        earlier ones."""
        uuid, columns = 0, {}  # values by column of `Track`
        for field, wire, value in fields(descriptor):
            if field == 1:  # uuid
                uuid = as_int64(value)
            elif field in (2, 10):  # name, static_name
                columns["name"] = as_text(value)
            elif field == 5:  # parent_uuid
                columns["parent"] = as_int64(value)
            elif field in (3, 4) and wire == LENGTH:  # process, thread
                inner = {number: part for number, _, part in fields(as_message(value))}
                columns["pid"] = as_int64(inner.get(1, 0))
                columns["tid"] = as_int64(inner.get(2, 0)) if field == 4 else 0
                name = as_text(inner.get(6 if field == 3 else 5, 0))
                columns.setdefault("name", name)
        stated = {column: value for column, value in columns.items() if value}
        self.tracks[uuid] = self.tracks.get(uuid, Track())._replace(**stated)

    def _add_event(self, event: memoryview, sequence: _Sequence, time: int) -> None:
        """Opens a slice on its track, or closes the innermost open one and passes it to `add_slice`, at `time` ns of
        trace time. `event`: a TrackEvent message."""
        kind, track, name, category, flow = 0, sequence.track, "", "", -1
        annotations: list[memoryview] = []
        for field, wire, value in fields(event):
            if field == 9:  # type
                kind = as_int64(value)
            elif field == 11:  # track_uuid
                track = as_int64(value)
            elif field == 23:  # name
                name = as_text(value)
            elif field == 10:  # name_iid: an id in the table of names (2)
                name = sequence.names.get((2, as_int64(value)), "")
            elif field == 22:  # categories
                category = as_text(value)
            elif field == 3 and not isinstance(value, memoryview):  # category_iids
                category = sequence.names.get((1, value), "")
            elif field == 4:  # debug_annotations
                annotations.append(as_message(value))
            elif field in (36, 47) and wire in (VARINT, FIXED64) and flow < 0 and isinstance(value, int):  # flow_ids
                flow = value
        stack = self.open_slices.setdefault(track, [])
        if kind == _SLICE_BEGIN:
            facts = dict(_decode_annotation(annotation, sequence) for annotation in annotations)
            stack.append(Slice(category, name, track, time, time, facts, flow))
        elif kind == _SLICE_END:
            if stack:
                self.add_slice(stack.pop()._replace(stop=time))
            else:
                self.unmatched_ends += 1


def _read_defaults(defaults: memoryview, sequence: _Sequence) -> None:
    """Sets the clock and the track of `sequence` for events that name none. `defaults`: a TracePacketDefaults
    message."""
    for field, wire, value in fields(defaults):
        if field == _CLOCK_FIELD and wire == VARINT:
            sequence.clock = as_int64(value)
        elif field == _EVENT_FIELD:
            # Field 11 of the defaults of events is the track's id.
            sequence.track = next((as_int64(uuid) for inner, _, uuid in fields(as_message(value)) if inner == 11), 0)


def _intern(interned: memoryview, sequence: _Sequence) -> None:
    """Adds interned texts to `sequence.names`. Their tables are the fields of the InternedData message: categories (1),
    names (2), annotation names (3) and annotation texts (29); each entry has an id (1) and a text (2)."""
    for table, wire, value in fields(interned):
        if table in (1, 2, 3, 29) and wire == LENGTH:
            entry = {field: inner for field, _, inner in fields(as_message(value))}
            sequence.names[table, as_int64(entry.get(1, 0))] = as_text(entry.get(2, 0))


def _read_clock_snapshot(snapshot: memoryview, sequence: _Sequence) -> None:
    """Relates the sequence's own clocks to the trace's clock by a snapshot of both at one moment; sets
    `sequence.clocks`. `snapshot`: a ClockSnapshot message."""
    # Fields of a Clock: its id (1), timestamp (2), whether it is incremental (3), ns of its unit (4).
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
                trace_ns=sequence_ns if trace_ns is None else trace_ns,
                stamp=stamp,
                unit=unit,
                incremental=bool(clock.get(3, 0)),
            )


def _decode_annotation(annotation: memoryview, sequence: _Sequence) -> tuple[str, int | str]:
    """(Name, value) of a debug annotation; the value is -1 if it is of another type than those read here. Tables 3 and
    29 of `sequence.names` hold interned names and texts."""
    name, value = "", -1
    for field, _, raw in fields(annotation):
        if field == 10:  # name
            name = as_text(raw)
        elif field == 1:  # name_iid
            name = sequence.names.get((3, as_int64(raw)), "")
        elif field in (3, 4, 7):  # uint_value, int_value, pointer_value
            value = as_int64(raw)
        elif field == 5:  # double_value
            value = int(as_double(raw)) if abs(as_double(raw)) < 2**62 else -1
        elif field == 6:  # string_value
            value = as_text(raw)
        elif field == 17:  # string_value_iid
            value = sequence.names.get((29, as_int64(raw)), "")
    return name, value
