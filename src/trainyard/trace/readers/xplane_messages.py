"""Decodes XSpace messages: planes, their metadata and stats, and the events of their lines.

Schema: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto. A timestamp is ns
of the line plus ps of the event: both ends are rounded down to a ns, so that events that do not overlap in the file do
not overlap here. `xplane.py` is the caller.

A plane is a device or a part of the host, a line one of its streams or threads. Events and stats (named values) refer
to metadata of their plane by id. Numbers in comparisons with `field` are those of fields in the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainyard.formats.protobuf import (
    FIXED64,
    LENGTH,
    Malformed,
    Value,
    as_double,
    as_int64,
    as_message,
    as_text,
    fields,
)

Stats = dict[str, int | str]
_PS = 1000


class Event(NamedTuple):
    """An event from `start` to `stop` ns. `name`: in full; `shown`: XLA's display name, else the same."""

    name: str
    shown: str
    start: int
    stop: int
    stats: Stats


class Plane(NamedTuple):
    """A plane with undecoded `lines`. `kinds`: id of an event's metadata -> (name, shown name, stats that its events
    share); `stats`: id -> name of a stat; `facts`: the plane's own stats by name."""

    name: str
    lines: list[memoryview]
    kinds: dict[int, tuple[str, str, Stats]]
    stats: dict[int, str]
    facts: Stats


def decode_events(plane: Plane, line: memoryview, damaged: list[str]) -> Iterator[Event]:
    """Yields a line's events; appends the damage of unreadable ones to `damaged`."""
    line_start_ns = 0
    events: list[memoryview] = []
    for field, wire, value in fields(line, damaged):  # of XLine
        if field == 3:  # timestamp_ns
            line_start_ns = as_int64(value)
        elif field == 4 and wire == LENGTH:  # events
            events.append(as_message(value))
    for event in events:
        try:
            yield _decode_event(event, line_start_ns, plane)
        except Malformed as error:
            damaged.append(str(error))


def line_name(line: memoryview) -> str:
    return next((as_text(value) for field, _, value in fields(line, []) if field == 2), "")


def line_id(line: memoryview) -> int:
    return next((as_int64(value) for field, _, value in fields(line, []) if field == 1), 0)


def decode_plane(plane: memoryview, damaged: list[str]) -> Plane:
    """Decodes a plane except for its lines; appends what could not be read to `damaged`."""
    name = ""
    # Fields of XPlane: lines, event_metadata and stat_metadata (maps from id), stats.
    messages: dict[int, list[memoryview]] = {field: [] for field in (3, 4, 5, 6)}
    for field, wire, value in fields(plane, damaged):
        if field == 2:  # name
            name = as_text(value)
        elif field in messages and wire == LENGTH:
            messages[field].append(as_message(value))
    lines, kind_entries, name_entries, facts = messages.values()
    names = {ident: _find_text(2, entry) for ident, entry in _decode_map_entries(name_entries, damaged)}
    kinds = {ident: _decode_kind(entry, names) for ident, entry in _decode_map_entries(kind_entries, damaged)}
    return Plane(name=name, lines=lines, kinds=kinds, stats=names, facts=_decode_stats(facts, names, damaged))


def _decode_kind(entry: list[tuple[int, int, Value]], names: dict[int, str]) -> tuple[str, str, Stats]:
    """(Name, shown name, stats) that all events of a kind share. `entry`: the fields of its XEventMetadata, in which 2
    is the name, 4 the display name, 5 a stat; `names`: id -> name of a stat."""
    stats = [as_message(value) for field, wire, value in entry if (field, wire) == (5, LENGTH)]
    return _find_text(2, entry), _find_text(4, entry), _decode_stats(stats, names, [])


def _find_text(field_number: int, entry: list[tuple[int, int, Value]]) -> str:
    return next((as_text(value) for field, _, value in entry if field == field_number), "")


def _decode_map_entries(
    entries: list[memoryview], damaged: list[str]
) -> Iterator[tuple[int, list[tuple[int, int, Value]]]]:
    """Yields (key, fields of the value) of the entries of a map from integers to messages; a field is (field number,
    wire type, value). An entry is a message with the key in field 1 and the value in field 2. Appends the damage of
    unreadable ones to `damaged`."""
    for entry in entries:
        try:
            pair = {field: value for field, _, value in fields(entry)}
            yield as_int64(pair.get(1, 0)), list(fields(as_message(pair.get(2, memoryview(b"")))))
        except Malformed as error:
            damaged.append(str(error))


def _decode_stats(stats: list[memoryview], names: dict[int, str], damaged: list[str]) -> Stats:
    """Name -> value of the XStat messages `stats`; -1 for a value of a type that is not read. A value may refer to a
    name by number; a damaged stat keeps the value read before the damage, which is appended to `damaged`. `names`:
    id -> name of a stat."""
    by_name: Stats = {}
    for stat in stats:
        ident, value = 0, -1
        for field, wire, raw in fields(stat, damaged):
            if field == 1:  # metadata_id
                ident = as_int64(raw)
            elif field == 2 and wire == FIXED64:  # double_value
                value = int(as_double(raw)) if abs(as_double(raw)) < 2**62 else -1
            elif field in (3, 4):  # uint64_value, int64_value
                value = as_int64(raw)
            elif field == 5:  # str_value
                value = as_text(raw)
            elif field == 7:  # ref_value: an id in `names`
                value = names.get(as_int64(raw), "")
        by_name[names.get(ident, "")] = value
    return by_name


def _decode_event(event: memoryview, line_start_ns: int, plane: Plane) -> Event:
    """Decodes the XEvent message `event`; times in ns, each end rounded down. Its stats replace those of its kind that
    have the same name. Raises `Malformed` for an aggregate of several events."""
    kind_id = offset_ps = length_ps = 0
    stat_messages: list[memoryview] = []
    for field, wire, value in fields(event):
        if field == 1:  # metadata_id
            kind_id = as_int64(value)
        elif field == 2:  # offset_ps
            offset_ps = as_int64(value)
        elif field == 3:  # duration_ps
            length_ps = as_int64(value)
        elif field == 4 and wire == LENGTH:  # stats
            stat_messages.append(as_message(value))
        elif field == 5:  # num_occurrences
            raise Malformed("an event that aggregates several has no time")
    name, shown, stats = plane.kinds.get(kind_id, (f"event {kind_id}", "", {}))
    start_ps = line_start_ns * _PS + offset_ps
    all_stats = {**stats, **_decode_stats(stat_messages, plane.stats, [])}
    return Event(
        name=name, shown=shown or name, start=start_ps // _PS, stop=(start_ps + length_ps) // _PS, stats=all_stats
    )
