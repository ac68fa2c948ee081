"""Reads GPU and TPU profiles of JAX and XLA (`*.xplane.pb`).

Schema: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto, and the names of
planes, lines and stats in XLA's xplane_schema. A timestamp is ns of the line plus ps of the event: both ends are
rounded down to a ns, so that events that do not overlap in the file do not overlap here.

GPU operations are launched by calls on the host. TPU operations are not: their steps come from the plane's own `Steps`
line, and each compiled operation also becomes a span on a separate thread, so that its op class is known.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, MEMSET, NOTE, OP, Collective, Events
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
    first_message,
)
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.step_marks import STEP_MARK
from trainyard.trace.readers import hlo, whole_files
from trainyard.trace.readers.annotate import add_range, copy_name
from trainyard.trace.readers.gather import STATED, Gather, experimental

NOTES = experimental(
    "xplane.pb files",
    "Unproven: the lines that count as a device's work, the pairing of asynchronous starts and dones, and op classes, "
    "which come from the primitives and categories that XLA states.",
)
_PS = 1000
_DEVICE = re.compile(r"/device:(?P<kind>GPU|TPU):(?P<number>\d{1,6})\Z")
_HOSTS = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")
_COPY = re.compile(r"Mem(?:cpy|ory copy)\s?([HDP])(?:2|to)([HDP])", re.I)
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_STEP = re.compile(r"\d+")
_SIDES = {"H": "host", "D": "device", "P": "device"}


class _Event(NamedTuple):
    """An event from `start` to `stop` ns. `name`: in full; `shown`: XLA's display name, else the same."""

    name: str
    shown: str
    start: int
    stop: int
    stats: dict[str, int | str]


class _Plane(NamedTuple):
    """A plane with undecoded `lines`. `kinds`: id of an event's metadata -> (name, shown name, stats); `stats`: id ->
    name of a stat; `facts`: the plane's own stats by name."""

    name: str
    lines: list[memoryview]
    kinds: dict[int, tuple[str, str, dict[str, int | str]]]
    stats: dict[int, str]
    facts: dict[str, int | str]


_Hosts = list[tuple[tuple[str, int], list[_Event]]]


class Xplane:
    """The `Reader` of xplane.pb files."""

    def sniff(self, path: Path) -> bool:
        """Whether the file begins with a plane: its id and its name come first."""
        plane = first_message(memoryview(whole_files.head(path)), 1)
        values = {field: value for field, _, value in fields(plane, []) if field <= 2} if plane else {}
        return as_text(values.get(2, 0)).startswith(("/host:", "/device:", "Task Environment"))

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """One `Events` for each device with work. Raises `BadFile`."""
        lost: list[str] = []
        damaged: list[str] = []
        planes: list[_Plane] = []
        host_name = ""
        for field, wire, value in fields(memoryview(whole_files.contents(path, how.limit)), lost):
            if field == 1 and wire == LENGTH:
                planes.append(_decode_plane(as_message(value), damaged))
            elif field == 4 and wire == LENGTH:
                host_name = host_name or as_text(value)
        devices = [(plane, match) for plane in planes if (match := _DEVICE.match(plane.name))]
        if not devices:
            names = ", ".join(plane.name[:40] for plane in planes[:6]) or "none"
            reason = f" ({lost[0]})" if lost else ""
            raise BadFile(f"{path}: the file has no plane of a GPU or TPU; its planes: {names}{reason}.")
        hosts = [
            ((plane.name, _line_id(line)), list(_decode_events(plane, line, damaged)))
            for plane in planes
            if plane.name in _HOSTS
            for line in plane.lines
        ]
        readings = [
            _DeviceRows(
                f"{path.name}:{match['number']}" if len(devices) > 1 else path.name, plane, match, hosts, damaged
            )
            for plane, match in devices
        ]
        notes = [NOTES]
        if lost:
            notes.append(f"The file is cut short: {lost[0]}. The part before that was read.")
        if damaged:
            notes.append(f"{len(damaged):,} damaged parts were left out: {damaged[0]}.")
        if unread_planes := [
            plane.name for plane in planes if plane.name.startswith("/device:") and not _DEVICE.match(plane.name)
        ]:
            notes.append(f"{len(unread_planes):,} other device planes were not read: {', '.join(unread_planes)[:200]}.")
        if len(devices) > 1:
            notes.append("The file holds several devices; each is treated as a separate rank.")
        working = [reading for reading in readings if len(reading.rows)]
        if not working:
            raise BadFile(f"{path}: none of its {len(devices)} devices has an operation.", "Was a step profiled?")
        return tuple(
            events for reading in working for events in reading.rows.events(notes, reading.device_names, host_name)
        )


class _DeviceRows:
    """The rows of one device's plane and of the host's planes."""

    def __init__(self, source: str, plane: _Plane, match: re.Match[str], hosts: _Hosts, damaged: list[str]) -> None:
        """Read the lines of one device's plane. `match`: its name, with the groups `kind` (GPU or TPU) and `number`;
        `damaged`: messages of damage, appended to."""
        self.number = int(match["number"])
        self.rows = Gather(source)
        self.damaged = damaged
        device_name = next(
            (plane.facts[name] for name in ("gpu_device_name", "device_type_string") if name in plane.facts), ""
        )
        self.device_names = {self.number: str(device_name)}
        # Correlation id of a call -> (op class, pass) of its kernels' operations: a graph launch has many.
        self.ops_by_correlation: dict[int, set[tuple[str, str]]] = {}
        self.op_count = 0
        lines = {name: line for line in plane.lines if (name := _line_name(line))}
        streams = {name: line for name, line in lines.items() if name.startswith("Stream #")}
        if match["kind"] == "GPU" and streams:
            for name, line in streams.items():
                self.add_stream(name.partition("(")[0], plane, line)
            self.add_hosts(hosts, marks=True)
        elif "XLA Ops" in lines:
            for event in _decode_events(plane, lines["Steps"], damaged) if "Steps" in lines else ():
                step = _STEP.search(str(event.stats.get("step_num", event.name)))
                self.rows.span(
                    f"{STEP_MARK}{step[0] if step else event.name}", NOTE, plane.name, event.start, event.stop
                )
            self.add_operations(plane, lines["XLA Ops"])
            self.add_hosts(hosts, marks=False)

    def add_stream(self, lane: str, plane: _Plane, line: memoryview) -> None:
        """Adds a stream of a GPU. A kernel and the call that launched it share a correlation id."""
        for event in _decode_events(plane, line, self.damaged):
            correlation = event.stats.get("correlation_id", -1)
            correlation = correlation if isinstance(correlation, int) else -1
            kind, name, size = KERNEL, event.name, -1
            if copy := _COPY.match(event.name):
                kind, name = COPY, copy_name(_SIDES[copy[1].upper()], _SIDES[copy[2].upper()])
                size_match = _SIZE.search(str(event.stats.get("memcpy_details", "")))
                size = int(size_match[1]) if size_match else -1
            elif event.name.lower().startswith("memset"):
                kind = MEMSET
            elif correlation >= 0:
                stated = _stated_class(hlo.op_of(event.shown), event) or ""
                self.ops_by_correlation.setdefault(correlation, set()).add((stated, _pass_of(event)))
            self.rows.work(name, kind, lane, self.number, event.start, event.stop, correlation=correlation, size=size)

    def add_operations(self, plane: _Plane, line: memoryview) -> None:
        """Adds a TPU's operations. An asynchronous one lasts from its start to its done, whatever runs meanwhile.
        Control flow is left out: its time is that of the operations inside it."""
        open_starts: dict[str, dict[str, _Event]] = {}
        for event in sorted(_decode_events(plane, line, self.damaged), key=lambda event: event.start):
            op = hlo.op_of(event.name)
            kind = op.opcode.removesuffix(f"-{op.part}")
            if op.part == "start":
                open_of_kind = open_starts.setdefault(kind, {})
                if op.name in open_of_kind:  # its done is not in the file
                    self.add_operation(plane.name, open_of_kind[op.name], op, open_of_kind[op.name].start)
                open_of_kind[op.name] = event
            elif op.part == "done":
                open_of_kind = open_starts.get(kind, {})
                # Without the name of its start, a done ends the oldest of its kind.
                start = open_of_kind.pop(op.begun if op.begun in open_of_kind else next(iter(open_of_kind), ""), event)
                self.add_operation(plane.name, event, op, start.start)
            elif op.opcode not in hlo.CONTAINERS:
                self.add_operation(plane.name, event, op, event.start)
        for event in (event for open_of_kind in open_starts.values() for event in open_of_kind.values()):
            self.add_operation(plane.name, event, hlo.op_of(event.name), event.start)

    def add_operation(self, thread: str, event: _Event, op: hlo.Op, start: int) -> None:
        """Adds a TPU operation and, as its op, a span on the device's own thread."""
        collective, copy = hlo.collective_of(op, str(event.stats.get("hlo_category", ""))), hlo.copy_of(op)
        stated = None if collective or copy else _stated_class(op, event)
        row = len(self.rows)
        self.add_stated(f"{STATED}{stated}" if stated else op.opcode, _pass_of(event), thread, event, row)
        self.rows.work(
            copy or op.name,
            COPY if copy else KERNEL,
            "XLA Ops",
            self.number,
            start,
            event.stop,
            external=row,
            size=_moved_bytes(event) if copy else -1,
            collective=Collective(name=collective) if collective else None,
        )

    def add_stated(self, name: str, of_pass: str, thread: Hashable, event: _Event, external: int = -1) -> None:
        """Adds the host spans of an operation's op. They get autograd sequence numbers, which identify the passes."""
        self.op_count += 1
        if of_pass in ("backward", "again"):
            self.rows.span("jax::backward", OP, thread, event.start, event.stop, backward=True)
        seq = self.op_count if of_pass in ("forward", "again") else -1
        self.rows.span(name, OP, thread, event.start, event.stop, external=external, seq=seq)

    def add_hosts(self, hosts: _Hosts, marks: bool) -> None:
        """Adds the host's threads: calls have a correlation id, steps a number; the rest are annotations. `marks`:
        whether the host's steps are the device's."""
        for thread, events in hosts:
            for event in events:
                self.add_host_event(event, thread, marks)

    def add_host_event(self, event: _Event, thread: tuple[str, int], marks: bool) -> None:
        """Adds a call (and, if it launched one operation, that operation's op), a step's mark or an annotation."""
        step, correlation = event.stats.get("step_num"), event.stats.get("correlation_id")
        if isinstance(correlation, int):
            ops = self.ops_by_correlation.get(correlation, set())
            if len(ops) == 1 and (only := next(iter(ops)))[0]:
                self.add_stated(f"{STATED}{only[0]}", only[1], thread, event)
            self.rows.span(event.name, CALL, thread, event.start, event.stop, correlation=correlation)
        elif isinstance(step, int) and marks:
            self.rows.span(f"{STEP_MARK}{step}", NOTE, thread, event.start, event.stop)
        else:
            add_range(self.rows, event.name, thread, event.start, event.stop)


def _stated_class(op: hlo.Op, event: _Event) -> str | None:
    """The op class that the file states; on a GPU, the operation is a stat of the kernel."""
    kernel_op = event.stats.get("hlo_op")
    opcode = hlo.op_of(str(kernel_op)).opcode if kernel_op else op.opcode
    return hlo.class_of(opcode, str(event.stats.get("hlo_category", "")), str(event.stats.get("tf_op", "")))


def _decode_events(plane: _Plane, line: memoryview, damaged: list[str]) -> Iterator[_Event]:
    """Yields a line's events; appends the damage of unreadable ones to `damaged`."""
    line_start_ns = 0
    events: list[memoryview] = []
    for field, wire, value in fields(line, damaged):
        if field == 3:
            line_start_ns = as_int64(value)
        elif field == 4 and wire == LENGTH:
            events.append(as_message(value))
    for event in events:
        try:
            yield _decode_event(event, line_start_ns, plane)
        except Malformed as error:
            damaged.append(str(error))


def _pass_of(event: _Event) -> str:
    """The pass of an operation, from its path: `jvp` is JAX's forward pass, `transpose` its backward pass; `again` is
    recomputation for the backward pass."""
    path = str(event.stats.get("tf_op", ""))
    if "transpose(" in path:
        return "again" if "rematted_computation" in path else "backward"
    return "forward" if "jvp(" in path else ""


def _moved_bytes(event: _Event) -> int:
    size = event.stats.get("bytes_accessed", -1)
    return size if isinstance(size, int) else -1


def _line_name(line: memoryview) -> str:
    return next((as_text(value) for field, _, value in fields(line, []) if field == 2), "")


def _line_id(line: memoryview) -> int:
    return next((as_int64(value) for field, _, value in fields(line, []) if field == 1), 0)


def _decode_plane(plane: memoryview, damaged: list[str]) -> _Plane:
    """Decodes a plane except for its lines; appends what could not be read to `damaged`."""
    name = ""
    messages: dict[int, list[memoryview]] = {field: [] for field in (3, 4, 5, 6)}
    for field, wire, value in fields(plane, damaged):
        if field == 2:
            name = as_text(value)
        elif field in messages and wire == LENGTH:
            messages[field].append(as_message(value))
    lines, kind_entries, stats, facts = messages.values()
    names = {ident: _find_text(2, entry) for ident, entry in _decode_map_entries(stats, damaged)}
    kinds = {ident: _decode_kind(entry, names) for ident, entry in _decode_map_entries(kind_entries, damaged)}
    return _Plane(name=name, lines=lines, kinds=kinds, stats=names, facts=_decode_stats(facts, names, damaged))


def _decode_kind(entry: list[tuple[int, int, Value]], names: dict[int, str]) -> tuple[str, str, dict[str, int | str]]:
    """The name, shown name and stats that all events of a kind share."""
    stats = [as_message(value) for field, wire, value in entry if (field, wire) == (5, LENGTH)]
    return _find_text(2, entry), _find_text(4, entry), _decode_stats(stats, names, [])


def _find_text(field_number: int, entry: list[tuple[int, int, Value]]) -> str:
    return next((as_text(value) for field, _, value in entry if field == field_number), "")


def _decode_map_entries(
    entries: list[memoryview], damaged: list[str]
) -> Iterator[tuple[int, list[tuple[int, int, Value]]]]:
    """Yields (key, fields of the message) of a map's entries."""
    for entry in entries:
        try:
            pair = {field: value for field, _, value in fields(entry)}
            yield as_int64(pair.get(1, 0)), list(fields(as_message(pair.get(2, memoryview(b"")))))
        except Malformed as error:
            damaged.append(str(error))


def _decode_stats(stats: list[memoryview], names: dict[int, str], damaged: list[str]) -> dict[str, int | str]:
    """Stats by name. A value may refer to a name by number; a damaged stat keeps the value read before the damage."""
    by_name: dict[str, int | str] = {}
    for stat in stats:
        ident, value = 0, -1
        for field, wire, raw in fields(stat, damaged):
            if field == 1:
                ident = as_int64(raw)
            elif field == 2 and wire == FIXED64:
                value = int(as_double(raw)) if abs(as_double(raw)) < 2**62 else -1
            elif field in (3, 4):
                value = as_int64(raw)
            elif field == 5:
                value = as_text(raw)
            elif field == 7:
                value = names.get(as_int64(raw), "")
        by_name[names.get(ident, "")] = value
    return by_name


def _decode_event(event: memoryview, line_start_ns: int, plane: _Plane) -> _Event:
    """Decodes an event; times in ns, each end rounded down. Raises `Malformed` for an aggregate of several events."""
    kind_id = offset_ps = length_ps = 0
    stat_messages: list[memoryview] = []
    for field, wire, value in fields(event):
        if field == 1:
            kind_id = as_int64(value)
        elif field == 2:
            offset_ps = as_int64(value)
        elif field == 3:
            length_ps = as_int64(value)
        elif field == 4 and wire == LENGTH:
            stat_messages.append(as_message(value))
        elif field == 5:
            raise Malformed("an event that aggregates several has no time")
    name, shown, stats = plane.kinds.get(kind_id, (f"event {kind_id}", "", {}))
    start_ps = line_start_ns * _PS + offset_ps
    all_stats = {**stats, **_decode_stats(stat_messages, plane.stats, [])}
    return _Event(
        name=name, shown=shown or name, start=start_ps // _PS, stop=(start_ps + length_ps) // _PS, stats=all_stats
    )
