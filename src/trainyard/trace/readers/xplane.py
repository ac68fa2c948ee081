"""Reads GPU and TPU profiles of JAX and XLA (`*.xplane.pb`).

The names of planes, lines and stats are those of XLA's xplane_schema. GPU operations are launched by calls on the host.
TPU operations are not: their steps come from the plane's own `Steps` line, else from repeated `XLA Modules`, and each
compiled operation also becomes a span on a separate thread, so that its op class is known. Other lines of a TPU are
derived from these (`TC Overlay`, `Framework Ops`, `Source code`) or sample counters, and are not read.

A file holds planes: one for each device, and some for the host. A plane has lines (a stream of a GPU, a kind of a TPU's
operations, a thread of the host), a line has events, and an event has stats, which are named values. Rows are collected
in a `Gather`: `work` adds a row of device work, `span` one of the host.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, MEMSET, NOTE, OP, Collective, Events
from trainyard.formats.protobuf import LENGTH, as_message, as_text, fields
from trainyard.machine import find_device
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.step_marks import STEP_MARK
from trainyard.trace.readers import hlo, whole_files
from trainyard.trace.readers.annotate import add_range
from trainyard.trace.readers.gather import STATED, Gather
from trainyard.trace.readers.recognise import recognise
from trainyard.trace.readers.xplane_hosts import HostThread, host_threads, is_call, names_of_calls
from trainyard.trace.readers.xplane_messages import Event, Plane, decode_events, decode_plane, line_name
from trainyard.vendors.kernel_names import copy_of

_DEVICE = re.compile(r"/device:(?P<kind>GPU|TPU):(?P<number>\d{1,6})\Z")
# Names of copies: XLA's own, HIP's and rocprofiler's; and the kernels by which ROCm copies.
_COPY = re.compile(r"mem(cpy|ory ?_?copy)|copy(host|device)to|(hip|cu(da)?)memcpy|__amd_rocclr_copy", re.I)
_COPY_LINE = re.compile(r"Stream #\d+\((Memcpy\w+,?)+\)\Z")
_DIRECTED = re.compile(r"([hd])(ost|evice)?_?(2|to)_?([hd])|peer|p2p|ptop", re.I)
_MEMORY_KINDS = re.compile(r"kind_src:(?P<source>\w+).*kind_dst:(?P<target>\w+)")
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_STEP = re.compile(r"\d+")
_COPY_NAMES = {"h2d": "Memcpy HtoD", "d2h": "Memcpy DtoH", "d2d": "Memcpy DtoD"}
_TPU_NOTE = (
    "experimental: TPU planes follow XLA's documented schema and are not yet validated on real files: steps, XLA ops, "
    "infeed and asynchronous collectives."
)


class Xplane:
    """The `Reader` of xplane.pb files."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "xplane"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """One `Events` for each device with work. Raises `BadFile`."""
        lost: list[str] = []  # the reason why the file could not be read to its end
        damaged: list[str] = []  # a message for each part that was left out
        planes: list[Plane] = []
        host_name = ""
        # Field 1 of the file holds a plane, field 4 a name of the host.
        for field, wire, value in fields(memoryview(whole_files.contents(path, options.limit)), lost):
            if field == 1 and wire == LENGTH:
                planes.append(decode_plane(as_message(value), damaged))
            elif field == 4 and wire == LENGTH:
                host_name = host_name or as_text(value)
        devices = [(plane, match) for plane in planes if (match := _DEVICE.match(plane.name))]
        if not devices:
            names = ", ".join(plane.name[:40] for plane in planes[:6]) or "none"
            reason = f" ({lost[0]})" if lost else ""
            raise BadFile(f"{path}: the file has no plane of a GPU or TPU; its planes: {names}{reason}.")
        threads = host_threads(planes, damaged)
        calls = names_of_calls(threads)
        several = len(devices) > 1
        readings = [
            _DeviceRows(f"{path.name}:{match['number']}" if several else path.name, match, calls, options, damaged)
            for _, match in devices
        ]
        for reading, (plane, _) in zip(readings, devices):
            reading.add_plane(plane, threads)
        working = [reading for reading in readings if len(reading.rows)]
        if not working:
            raise BadFile(f"{path}: none of its {len(devices)} devices has an operation.", "Was a step profiled?")
        notes = _notes(planes, working, lost, damaged)
        python = any(thread.python_ns for thread in threads)
        return tuple(
            events
            for reading in working
            for events in reading.rows.events(notes, reading.device_names, host_name, python=python)
        )


def _notes(planes: Sequence[Plane], working: Sequence[_DeviceRows], lost: list[str], damaged: list[str]) -> list[str]:
    """Notes for the user: unproven and unread parts, and damage. `working`: the devices with work; `lost`: why the end
    of the file could not be read; `damaged`: messages on parts that were left out."""
    notes = [_TPU_NOTE] if any(reading.kind == "TPU" for reading in working) else []
    if lost:
        notes.append(f"The file is cut short: {lost[0]}. The part before that was read.")
    if damaged:
        notes.append(f"{len(damaged):,} damaged parts were left out: {damaged[0]}.")
    unread = [
        plane.name
        for plane in planes
        if plane.name.startswith("/device:") and not _DEVICE.match(plane.name) and plane.lines
    ]
    if unread:
        notes.append(f"{len(unread):,} other device planes were not read: {', '.join(unread)[:200]}.")
    if len(working) > 1:
        notes.append("The file holds several devices; each is treated as a separate rank.")
    return notes


class _DeviceRows:
    """The rows of one device and of the host threads that matter for it. `kind`: GPU or TPU; `number`: the device's;
    `calls`: correlation id -> name of the call; `launched`: correlation ids of the device's work. A correlation id is
    that of a call of the driver, which the work that it launched repeats."""

    def __init__(
        self, source: str, match: re.Match[str], calls: Mapping[int, str], options: ReadOptions, damaged: list[str]
    ) -> None:
        """`source`: the rank's file, for messages; `match`: the plane's name, with the groups `kind` and `number`;
        `options`: its `mark` is the prefix of step annotations; `damaged`: messages of damage, appended to."""
        self.kind, self.number = match["kind"], int(match["number"])
        self.rows = Gather(source, options.mark)
        self.calls, self.damaged = calls, damaged
        self.device_names: dict[int, str] = {}
        # Correlation id of a call -> (op class, pass) of its kernels' operations, empty texts if unknown: a graph
        # launch has many.
        self.ops_by_correlation: dict[int, set[tuple[str, str]]] = {}
        self.launched: set[int] = set()
        self.op_count = 0

    def add_plane(self, plane: Plane, threads: Sequence[HostThread]) -> None:
        """Adds the lines of the device's plane and the host's threads."""
        self.device_names[self.number] = _device_name(plane)
        lines = {name: line for line in plane.lines if (name := line_name(line))}
        streams = {name: line for name, line in lines.items() if name.startswith("Stream #")}
        if self.kind == "GPU" and streams:
            for name, line in streams.items():
                self.add_stream(name, plane, line)
            self.add_hosts(threads, marks=True)
        elif "XLA Ops" in lines:
            self.add_steps(plane, lines)
            pending = decode_events(plane, lines["Async XLA Ops"], self.damaged) if "Async XLA Ops" in lines else ()
            self.add_operations(plane.name, [*decode_events(plane, lines["XLA Ops"], self.damaged)], [*pending])
            self.add_hosts(threads, marks=False)

    def add_stream(self, name: str, plane: Plane, line: memoryview) -> None:
        """Adds the kernels, copies and memsets of a GPU's stream. A kernel and the call that launched it share a
        correlation id. `name`: the line's (`Stream #3(Memcpy,Compute)`)."""
        lane, only_copies = name.partition("(")[0], _COPY_LINE.match(name) is not None
        for event in decode_events(plane, line, self.damaged):
            correlation = event.stats.get("correlation_id", -1)
            correlation = correlation if isinstance(correlation, int) else -1
            self.launched.add(correlation)
            kind, shown, size = KERNEL, event.name, -1
            details = str(event.stats.get("memcpy_details", ""))
            if details or only_copies or _COPY.match(event.name):
                kind, shown = COPY, self._copy_name(event.name, details, correlation)
                size_match = _SIZE.search(details)
                size = int(size_match[1]) if size_match else -1
            elif event.name.lower().startswith("memset"):
                kind = MEMSET
            elif correlation >= 0:
                op_class = _stated_class(hlo.op_of(event.shown), event) or ""
                self.ops_by_correlation.setdefault(correlation, set()).add((op_class, _pass_of(event)))
            self.rows.work(shown, kind, lane, self.number, event.start, event.stop, correlation=correlation, size=size)

    def _copy_name(self, name: str, details: str, correlation: int) -> str:
        """The copy's name with its direction: from its own name, its kinds of memory, or the name of the call; a copy
        without any (`MemcpyOther`) counts as one on the device."""
        if match := _MEMORY_KINDS.search(details):
            from_device, to_device = (kind.lower() in ("device", "array", "managed") for kind in match.groups())
            return _COPY_NAMES["d2d" if from_device and to_device else "d2h" if from_device else "h2d"]
        directed_name = next((text for text in (name, self.calls.get(correlation, "")) if _DIRECTED.search(text)), "")
        return _COPY_NAMES[copy_of(directed_name)]

    def add_steps(self, plane: Plane, lines: dict[str, memoryview]) -> None:
        """Adds the steps of a TPU as marks; without them, its executions of modules as annotations. `lines`: those of
        the plane by name."""
        for event in decode_events(plane, lines["Steps"], self.damaged) if "Steps" in lines else ():
            step = _STEP.search(str(event.stats.get("step_num", event.name)))
            self.rows.span(f"{STEP_MARK}{step[0] if step else event.name}", NOTE, plane.name, event.start, event.stop)
        if "Steps" not in lines and "XLA Modules" in lines:
            for event in decode_events(plane, lines["XLA Modules"], self.damaged):
                self.rows.span(event.name.partition("(")[0], NOTE, plane.name, event.start, event.stop)

    def add_operations(self, thread: str, operations: list[Event], pending: list[Event]) -> None:
        """Adds a TPU's operations. An asynchronous one lasts from its start to its done, whatever runs meanwhile.
        Control flow is left out: its time is that of the operations inside it. `thread`: name of the host thread to
        which the operations are added as ops; `pending`: events of the line of asynchronous operations, which repeats
        them, and adds those that other cores run."""
        # Opcode without `-start` -> name of the operation -> its start, whose done has not been read yet.
        open_starts: dict[str, dict[str, Event]] = {}
        paired: set[str] = set()  # names, without `start` and `done`, of asynchronous operations
        for event in sorted(operations, key=lambda event: event.start):
            op = hlo.op_of(event.name)
            kind = op.opcode.removesuffix(f"-{op.part}")
            if op.part:
                paired |= {_base_name(op.name), _base_name(op.begun)}
            if op.part == "start":
                open_of_kind = open_starts.setdefault(kind, {})
                if op.name in open_of_kind:  # its done is not in the file
                    self.add_operation(thread, open_of_kind[op.name], op, open_of_kind[op.name].start)
                open_of_kind[op.name] = event
            elif op.part == "done":
                open_of_kind = open_starts.get(kind, {})
                # Without the name of its start, a done ends the oldest of its kind.
                start = open_of_kind.pop(op.begun if op.begun in open_of_kind else next(iter(open_of_kind), ""), event)
                self.add_operation(thread, event, op, start.start)
            elif op.opcode not in hlo.CONTAINERS:
                self.add_operation(thread, event, op, event.start)
        for event in (event for open_of_kind in open_starts.values() for event in open_of_kind.values()):
            self.add_operation(thread, event, hlo.op_of(event.name), event.start)
        self.add_asynchronous(f"{thread} asynchronous", pending, paired)

    def add_asynchronous(self, thread: str, pending: list[Event], paired: set[str]) -> None:
        """Adds the asynchronous operations whose start and done are not among the operations. Events with the same
        stat `flow` are the start and the done of one operation. `pending`: events of the line of asynchronous
        operations; `paired`: names, without `start` and `done`, of those that were added already."""
        flows: dict[object, list[Event]] = {}
        for index, event in enumerate(pending):
            flows.setdefault(event.stats.get("flow", f"event {index}"), []).append(event)
        for events in flows.values():
            op = hlo.op_of(events[0].name)
            if {_base_name(hlo.op_of(event.name).name) for event in events} & paired:
                continue
            last = max(events, key=lambda event: event.stop)
            self.add_operation(thread, last, op, min(event.start for event in events))

    def add_operation(self, thread: str, event: Event, op: hlo.Op, start: int) -> None:
        """Adds a TPU operation from `start` ns to the end of `event` and, as its op, a span on the device's own
        `thread`."""
        # The names of the collective and of the copy that it runs; None if it runs none.
        collective, copy = hlo.collective_of(op, str(event.stats.get("hlo_category", ""))), hlo.copy_of(op)
        op_class = None if collective or copy else _stated_class(op, event)
        row = len(self.rows)
        self.add_op_spans(f"{STATED}{op_class}" if op_class else op.opcode, _pass_of(event), thread, event, row)
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

    def add_op_spans(self, name: str, pass_name: str, thread: Hashable, event: Event, external: int = -1) -> None:
        """Adds the host spans of an operation's op, with the times of `event`.

        A span gets an autograd sequence number if it is forward work, and is inside a node of the backward pass if it
        is backward work. Recomputation (`again`) is both: forward work inside the backward pass. `pass_name`: as from
        `_pass_of`; `external`: id of the operation's row of device work, -1 if a call launched it.
        """
        self.op_count += 1
        if pass_name in ("backward", "again"):
            self.rows.span("jax::backward", OP, thread, event.start, event.stop, backward=True)
        seq = self.op_count if pass_name in ("forward", "again") else -1
        self.rows.span(name, OP, thread, event.start, event.stop, external=external, seq=seq)

    def add_hosts(self, threads: Sequence[HostThread], marks: bool) -> None:
        """Adds the threads that launch this device's work, the one that runs Python and those with steps. `marks`:
        whether the host's steps are the device's."""
        main = max(threads, key=lambda thread: thread.python_ns) if threads else None
        self.rows.main = main.ident if main else None
        for thread in threads:
            if thread is main or thread.has_steps or not self.launched.isdisjoint(thread.calls):
                for event in thread.events:
                    self.add_host_event(event, thread.ident, marks)

    def add_host_event(self, event: Event, thread: int, marks: bool) -> None:
        """Adds a call (and, if it launched one operation, that operation's op), a step's mark or an annotation."""
        step, correlation = event.stats.get("step_num"), event.stats.get("correlation_id")
        if is_call(event) and isinstance(correlation, int):
            ops = self.ops_by_correlation.get(correlation, set())
            op_class, pass_name = next(iter(ops)) if len(ops) == 1 else ("", "")
            if op_class:
                self.add_op_spans(f"{STATED}{op_class}", pass_name, thread, event)
            self.rows.span(event.name, CALL, thread, event.start, event.stop, correlation=correlation)
        elif isinstance(step, int) and marks:
            self.rows.span(f"{STEP_MARK}{step}", NOTE, thread, event.start, event.stop)
        else:
            add_range(self.rows, event.name, thread, event.start, event.stop)


def _device_name(plane: Plane) -> str:
    """The device's name; if the plane has none, that of the known device with its properties, else the properties;
    empty if the plane has neither."""
    facts = plane.facts
    if name := next((facts[key] for key in ("gpu_device_name", "device_type_string") if key in facts), ""):
        return str(name)
    major, minor, cores, memory, clock = (
        facts.get(key, -1)
        for key in ("compute_cap_major", "compute_cap_minor", "core_count", "memory_size", "clock_rate")
    )
    vendor = str(facts.get("device_vendor", ""))
    if not (vendor and isinstance(major, int) and isinstance(memory, int) and isinstance(clock, int) and memory > 0):
        return ""
    capability = f"compute capability {major}.{minor if isinstance(minor, int) and minor > 0 else 0}"
    properties = f"{vendor} GPU, {capability}, {cores} cores, {round(memory / 2**30)} GiB, {clock // 1000} MHz"
    known = find_device(properties)
    return f"{known.name} (by its properties)" if known else properties


def _base_name(name: str) -> str:
    """The name of an asynchronous operation without `start` and `done`: `all-gather.3`."""
    return re.sub(r"-(start|done)(?=[.\d]*\Z)", "", name)


def _stated_class(op: hlo.Op, event: Event) -> str | None:
    """The op class (key of words.OP_CLASSES) of an operation by its opcode, category and path in the file; None if they
    do not show it. On a GPU, the operation is the stat `hlo_op` of the kernel."""
    kernel_op = event.stats.get("hlo_op")
    opcode = hlo.op_of(str(kernel_op)).opcode if kernel_op else op.opcode
    return hlo.class_of(opcode, str(event.stats.get("hlo_category", "")), _path_of(event))


def _path_of(event: Event) -> str:
    """An operation's path (`jit(step)/jvp(Dense_0)/dot_general`), which is the stat `tf_op` or, on AMD's GPUs,
    `name`."""
    return next((text for key in ("tf_op", "name") if "/" in (text := str(event.stats.get(key, "")))), "")


def _pass_of(event: Event) -> str:
    """The pass of an operation, from its path: `forward` (JAX's `jvp`), `backward` (`transpose`), `again` for
    recomputation in the backward pass; empty for other work."""
    path = _path_of(event)
    if "transpose(" in path:
        return "again" if "rematted_computation" in path else "backward"
    return "forward" if "jvp(" in path else ""


def _moved_bytes(event: Event) -> int:
    size = event.stats.get("bytes_accessed", -1)
    return size if isinstance(size, int) else -1
