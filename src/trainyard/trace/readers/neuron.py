"""Reads the AWS Neuron profiler's JSON of a device (`neuron-profile view --output-format json`).

Documented (https://awsdocs-neuron.readthedocs-hosted.com, "Neuron Profile User Guide", "Alternative output formats"):
a `summary`, and for each `instruction` its `timestamp` and `duration` in ns, `label` (the engine's row), `opcode` and
`hlo_name`. The fields of the sections on DMA and collectives are not documented, so they are not read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.events import KERNEL, OP, Collective, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import hlo, whole_files
from trainyard.trace.readers.gather import STATED, Gather, experimental
from trainyard.trace.readers.recognise import recognise

NOTE = experimental(
    "Neuron device profiles",
    "Only instructions are documented and read: time in which only DMA or a collective's transfers run is "
    "unexplained; waiting instructions cannot be distinguished from working ones.",
)
_Raw = msgspec.Raw


class _Instruction(msgspec.Struct):
    """An executed instruction: `timestamp` and `duration` in ns, as the file states them."""

    timestamp: int
    duration: int
    label: str = ""
    opcode: str = ""
    hlo_name: str | None = None


class _Summary(msgspec.Struct):
    """`nc_idx`: number of the NeuronCore."""

    nc_idx: int | str | None = None


class _NeuronDocument(msgspec.Struct):
    """The file's fields that are read; instructions are decoded one by one."""

    summary: list[_Summary] = []
    instruction: list[_Raw] | None = None
    trace_events: _Raw = _Raw(b"")


_decode = msgspec.json.Decoder(_Instruction).decode


class Neuron:
    """The `Reader` of Neuron device profiles."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "neuron"

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """Returns the events of the file's device. Raises `BadFile`."""
        document = whole_files.decode(path, how.limit, _NeuronDocument, "neuron-profile")
        if document.instruction is None:
            system = "Its key 'trace_events' is that of a system profile." if document.trace_events is not None else ""
            raise BadFile(f"{path}: the key 'instruction' is missing. {system}".rstrip(), "Pass the device's profile.")
        rows = Gather(path.name, how.mark)
        device = (
            int(str(document.summary[0].nc_idx)) if document.summary and _is_index(document.summary[0].nc_idx) else -1
        )
        for raw in document.instruction:
            try:
                _add_instruction(rows, whole_files.record(_decode, raw), device)
            except (msgspec.MsgspecError, RecursionError):
                rows.dropped += 1
        return rows.events([NOTE])


def _is_index(core: int | str | None) -> bool:
    return str(core).isdecimal() and len(str(core)) < 9


def _add_instruction(rows: Gather, instruction: _Instruction, device: int) -> None:
    """Adds an instruction on its engine and, as its op, a span that names its op class."""
    op = hlo.op_of(instruction.hlo_name or "")
    collective = hlo.collective_of(op)
    # A product on the tensor engine counts as matmul, whatever operation it was fused into.
    op_class = "matmul" if instruction.opcode.upper().startswith("MATMUL") else hlo.class_of(op.opcode, "", "")
    start, stop = instruction.timestamp, instruction.timestamp + instruction.duration
    row = len(rows)
    span = f"{STATED}{op_class}" if op_class and not collective else op.opcode or instruction.opcode
    rows.span(span, OP, instruction.label, start, stop, external=row)
    rows.work(
        f"{instruction.opcode} {op.name}".strip(),
        KERNEL,
        instruction.label or "instructions",
        device,
        start,
        stop,
        external=row,
        collective=Collective(name=collective) if collective else None,
    )
