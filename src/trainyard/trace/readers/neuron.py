"""Reads the AWS Neuron profiler's JSON of a device (`neuron-profile view --output-format json`).

Documented (https://awsdocs-neuron.readthedocs-hosted.com, "Neuron Profile User Guide", and the terminology that each
file brings along): a `summary`, the `instruction`s of the engines and the `dma` packets of the queues. Times are ns
since the start of the program.

An engine is active while it processes an instruction, semaphore waits excluded, and a queue while it transfers a
packet: together they are the file's own `total_active_time`. Each engine and each queue is a stream. An aggregated DMA
transfer repeats its packets. The program is one launch of a compiled schedule: an idle engine waits for a dependency.

Rows are collected in a `Gather`: `work` adds a row of device work, `span` one of the host. The file records no host, so
that the spans are made from the instructions: the layer, the source line and the operation around each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import msgspec

from trainyard.errors import BadFile
from trainyard.events import CALL, COPY, KERNEL, NOTE, OP, PYTHON, Collective, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import hlo, whole_files
from trainyard.trace.readers.gather import STATED, Gather
from trainyard.trace.readers.interval_sets import measure_union_ns, merge_intervals, parts_outside
from trainyard.trace.readers.neuron_document import (
    ActiveTime,
    Dma,
    Instruction,
    NeuronDocument,
    ProfilerWarning,
    Queue,
    SourceLine,
    Summary,
)
from trainyard.trace.readers.neuron_opcodes import class_of_opcode, is_drain, is_wait, moves_data
from trainyard.trace.readers.recognise import recognise

_Row = TypeVar("_Row")
_decode_lines = msgspec.json.Decoder(list[SourceLine]).decode
_NS = 1_000_000_000
_TOLERATED_SHARE = 0.01
"""Share of the file's own active time by which the rows may differ from it, in addition to a ns per row."""
_MAX_WARNINGS = 8
_MAX_SLOTS = 64
"""Maximum number of rows of one stream that overlap and are kept apart."""
_QUEUE = re.compile(r"\bQ(\d{1,6})-E(\d{1,6})\Z")
"""A queue's number and that of its DMA engine at the end of the name of its row."""


class Neuron:
    """The `Reader` of Neuron device profiles."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "neuron"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns the events of the file's device. Raises `BadFile`."""
        document = whole_files.decode(path, options.limit, NeuronDocument, "neuron-profile")
        if document.instruction is None:
            system = "Its key 'trace_events' is that of a system profile." if document.trace_events else ""
            raise BadFile(f"{path}: the key 'instruction' is missing. {system}".rstrip(), "Pass the device's profile.")
        reading = _NeuronRows(path, document, options.mark)
        if not len(reading.rows):
            raise BadFile(
                f"{path}: none of its {len(document.instruction):,} instructions is work, and it lists no DMA packet.",
                "Capture an execution of the model.",
            )
        return reading.build_events()


class _NeuronRows:
    """The rows of one NeuronCore. `begin_ns`: the start of the program; `ended_ns`: stream -> the latest end of its
    rows so far, which is the earliest time its next row could start; `slots`: stream -> (start, stop) in ns of the last
    spans on each of its threads of host spans; `active`: (start, stop) of all rows; `device`: the core's number, -1 if
    unknown."""

    def __init__(self, path: Path, document: NeuronDocument, marks: str) -> None:
        """Reads the instructions and DMA packets, and adds their rows. `marks`: prefix of the layers that mark
        steps."""
        self.rows = Gather(path.name, marks)
        self.summary = next(self.decoded(document.summary or (), Summary), Summary())
        core = str(self.summary.nc_idx)
        self.device = int(core) if core.isdecimal() and len(core) < 9 else -1
        self.warnings = [
            warning.message for warning in self.decoded((document.warnings or ())[:_MAX_WARNINGS], ProfilerWarning)
        ]
        active_time = _ActiveTimes(list(self.decoded(document.active_time or (), ActiveTime)))
        instructions = sorted(self.decoded(document.instruction or (), Instruction), key=attrgetter("timestamp"))
        packets = _without_aggregates(list(self.decoded(document.dma or (), Dma)))
        self.instruction_count, self.packet_count = len(instructions), len(packets)
        self.begin_ns = min((item.timestamp for item in (*instructions[:1], *packets)), default=0)
        self.queue_names = _queue_names(list(self.decoded(document.dma_queues_info or (), Queue)))
        self.ended_ns: dict[str, int] = {}
        self.slots: dict[str, list[tuple[int, int]]] = {}
        self.active: list[tuple[int, int]] = []
        for label, of_engine in _grouped(instructions).items():
            self.add_engine(label, of_engine, active_time)
        for packet in sorted(packets, key=attrgetter("timestamp")):
            self.add_packet(packet)

    def build_events(self) -> tuple[Events, ...]:
        """The events of the core, with notes."""
        name = f"NeuronCore of {self.summary.instance_type}" if self.summary.instance_type else "NeuronCore"
        return self.rows.events(list(self.notes()), {self.device: name})

    def notes(self) -> Iterator[str]:
        """Yields notes for the user: events that the file counts and does not list, a different total, the profiler's
        own warnings."""
        for stated, present, items in (
            (self.summary.instructions, self.instruction_count, "instructions"),
            (self.summary.packets, self.packet_count, "DMA packets"),
        ):
            if stated > present:
                yield (
                    f"{stated - present:,} {items} are missing: the file's summary counts {stated:,}, and it lists "
                    f"{present:,}. The profiler dropped them, or they were filtered."
                )
        if self.summary.total_active_time is not None and self.active:
            stated_ns = round(max(0.0, min(self.summary.total_active_time, 1e9)) * _NS)
            active_ns = measure_union_ns(self.active)
            # Durations are rounded down to a ns, so each row may miss up to one.
            if abs(active_ns - stated_ns) > len(self.active) + _TOLERATED_SHARE * stated_ns:
                yield (
                    f"The file's own total_active_time is {stated_ns:,} ns; its working instructions and DMA packets "
                    f"take {active_ns:,} ns."
                )
        for warning in dict.fromkeys(self.warnings):
            yield f"neuron-profile warns: {warning[:400]}"

    def decoded(self, records: Sequence[msgspec.Raw], record_type: type[_Row]) -> Iterator[_Row]:
        """Yields the readable records, decoded from raw JSON as `record_type`; counts the others as dropped."""
        decode = msgspec.json.Decoder(record_type).decode
        for raw in records:
            try:
                yield whole_files.record(decode, raw)
            except (msgspec.MsgspecError, RecursionError):
                self.rows.dropped += 1

    def add_engine(self, label: str, instructions: list[Instruction], active_time: _ActiveTimes) -> None:
        """Adds an engine's working instructions in order of time. Waits are left out, and a drain counts only outside
        the instructions for whose end it waits. `label`: the engine's row in the file; `active_time`: the intervals in
        which the file counts engines as active."""
        working = [item for item in instructions if not is_wait(item.opcode) and not active_time.is_idle(label, item)]
        others = merge_intervals([(item.timestamp, item.stop) for item in working if not is_drain(item.opcode)])
        for item in working:
            if is_drain(item.opcode):
                for start, stop in parts_outside(item.timestamp, item.stop, others):
                    self.add_instruction(item, start, stop)
            else:
                self.add_instruction(item, item.timestamp, item.stop)

    def add_instruction(self, item: Instruction, start: int, stop: int) -> None:
        """Adds a working instruction on its engine, from `start` to `stop` ns, and, as its op, the HLO operation inside
        its layer."""
        op = hlo.op_of(item.hlo_name or "")
        collective = hlo.collective_of(op)  # the name of the collective that it runs; None if it is not one
        own_class = class_of_opcode(item.opcode, item.instruction_type or "")
        # A product on the tensor engine counts as matmul, whatever operation it was fused into; branches and register
        # writes do not compute, although they belong to an operation.
        op_class = own_class if own_class in (None, "matmul") else hlo.class_of(op.opcode, "", "") or own_class
        is_transposition = item.instruction_type == "TRANSPOSE"
        op_class = own_class if is_transposition else op_class
        lane = item.label or "instructions"
        frame = _frame_of(item.hlo_attrs or "")
        # (text, kind) of the host spans around the instruction, outermost first.
        spans = [(text, kind) for text, kind in ((item.layer, NOTE), (frame, PYTHON), (op.name, OP)) if text]
        self.add_work(
            f"{item.opcode}{' (transpose)' if is_transposition else ''} {op.name}".strip(),
            COPY if moves_data(item.opcode) else KERNEL,
            lane,
            start,
            stop,
            [*spans, (f"{STATED}{op_class or 'other'}" if not collective else op.opcode, OP)],
            collective=Collective(name=collective) if collective else None,
        )

    def add_packet(self, packet: Dma) -> None:
        """Adds a DMA packet on its queue: a copy within the device's memories, or a part of a collective."""
        is_collective = packet.is_cc_dma == "yes"
        variable = "" if packet.variable == "unknown" else packet.variable
        self.add_work(
            f"DMA {variable or packet.queue_type}".strip(),
            KERNEL if is_collective else COPY,
            self.queue(packet.subgroup),
            packet.timestamp,
            packet.timestamp + packet.duration,
            [("DMA", OP)],
            size=packet.transfer_size,
            collective=Collective(name="other") if is_collective else None,
        )

    def queue(self, row: str) -> str:
        """The name of a queue's stream: that of its row (`qSync0-Q1-E3`), preceded by the queue's name if that is not
        part of it (`Q0-E3`)."""
        numbers = _QUEUE.search(row)
        if numbers is None:
            return row or "DMA"
        number, engine = int(numbers[1]), int(numbers[2])
        name = self.queue_names.get((number, engine)) or self.queue_names.get((number, -1), "")
        return row if row.startswith(name) else f"{name}-{row}"

    def add_work(
        self,
        name: str,
        kind: int,
        lane: str,
        start: int,
        stop: int,
        spans: Sequence[tuple[str, int]],
        size: int = -1,
        collective: Collective | None = None,
    ) -> None:
        """Adds a row of device work, its host spans (text, kind), outermost first, and the call that launched it: a
        stream of a compiled schedule can begin its next row when it has ended the one before."""
        row = len(self.rows)
        launch = min(self.ended_ns.get(lane, self.begin_ns), start)
        self.ended_ns[lane] = max(stop, self.ended_ns.get(lane, stop))
        thread = lane, self.take_slot(lane, launch, stop)
        for text, span_kind in spans:
            self.rows.span(text, span_kind, thread, launch, stop)
        self.rows.span("issue", CALL, thread, launch, launch, correlation=row)
        self.rows.work(name, kind, lane, self.device, start, stop, correlation=row, size=size, collective=collective)
        self.active.append((start, stop))

    def take_slot(self, lane: str, start: int, stop: int) -> int:
        """Returns the index of a thread of the stream `lane` that has no span overlapping [start, stop] (ns), and
        reserves it until `stop`. Rows of a pipelined engine overlap; on one thread, one would become the parent of the
        other. If all `_MAX_SLOTS` threads are in use, returns the last one, without reserving it."""
        slots = self.slots.setdefault(lane, [])
        for number, (last_start, last_stop) in enumerate(slots):
            if last_start < start and last_stop <= start:
                slots[number] = start, stop
                return number
        if len(slots) < _MAX_SLOTS:
            slots.append((start, stop))
        return len(slots) - 1


class _ActiveTimes:
    """The intervals in which each engine was active, by the file's own account; empty if it has none."""

    def __init__(self, records: Sequence[ActiveTime]) -> None:
        """`records`: the file's active intervals, of all engines."""
        by_engine: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for record in records:
            by_engine[record.engine.lower()].append((record.start_ts, max(record.start_ts, record.end_ts)))
        self.by_engine = {engine: merge_intervals(intervals) for engine, intervals in by_engine.items() if engine}

    def is_idle(self, label: str, item: Instruction) -> bool:
        """Whether the file counts the engine as idle during the whole instruction, which therefore waited. False if the
        file has no intervals of the engine, and after its last interval. `label`: the engine's row (`TensorMatrix` is a
        row of the tensor engine)."""
        engine = next((engine for engine in self.by_engine if label.lower().startswith(engine)), None)
        if engine is None or not item.duration:
            return False
        start, stop = self.by_engine[engine]
        if item.timestamp >= stop[-1]:
            return False
        index = bisect_right(start, item.stop - 1) - 1  # the last interval that begins before the instruction ends
        return index < 0 or stop[index] <= item.timestamp


def _grouped(instructions: Sequence[Instruction]) -> dict[str, list[Instruction]]:
    """Label -> instructions of that row, in order."""
    by_label: dict[str, list[Instruction]] = {}
    for item in instructions:
        by_label.setdefault(item.label, []).append(item)
    return by_label


@lru_cache(maxsize=65536)
def _frame_of(attributes: str) -> str:
    """The source line in an operation's attributes as a Python frame (`model.py(12): dot`); empty if there is none."""
    try:
        lines = _decode_lines(attributes) if attributes else []
    except (msgspec.MsgspecError, RecursionError):
        return ""
    line = next((line for line in lines if line.source_file), None)
    return f"{line.source_file}({line.source_line}): {line.op_type}".rstrip(": ") if line else ""


def _queue_names(queues: Sequence[Queue]) -> dict[tuple[int, int], str]:
    """(number of a queue, number of its DMA engine) -> name; the engine is -1 if all engines' queues of the number have
    one name."""
    names = {(queue.q_idx, queue.q_eng_idx): queue.q_name for queue in queues}
    for number in {queue.q_idx for queue in queues}:
        distinct = {queue.q_name for queue in queues if queue.q_idx == number}
        if len(distinct) == 1:
            names[number, -1] = distinct.pop()
    return names


def _without_aggregates(transfers: Sequence[Dma]) -> list[Dma]:
    """The packets, and the aggregated transfers whose packets the file does not list."""
    ids_with_packets = {item.packet_aggregation_id for item in transfers if item.aggregated != "yes"}
    return [item for item in transfers if item.aggregated != "yes" or item.id not in ids_with_packets]
