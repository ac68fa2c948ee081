"""Reads the AWS Neuron profiler's JSON of a device (`neuron-profile view --output-format json`).

Documented (https://awsdocs-neuron.readthedocs-hosted.com, "Neuron Profile User Guide", "Alternative output formats"):
a `summary`, and for each `instruction` its `timestamp` and `duration` in ns, `label` (the engine's row), `opcode` and
`hlo_name`. The fields of the sections on DMA and collectives are not, so they are not read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainyard.errors import BadFile
from trainyard.events import KERNEL, OP, Collective, Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import hlo, whole_files
from trainyard.trace.readers.gather import STATED, Gather, experimental

NOTE = experimental(
    "Neuron device profiles",
    "Only instructions are documented, and read: where only DMA or a collective's transfers run, the time is "
    "unexplained; instructions that wait cannot be told from those that work.",
)
_KEYS = (b'"instruction"', b'"summary"')
_Raw = msgspec.Raw


class _Instruction(msgspec.Struct):
    timestamp: int
    duration: int
    label: str = ""
    opcode: str = ""
    hlo_name: str | None = None


class _Summary(msgspec.Struct):
    nc_idx: int | str | None = None


class _NeuronDocument(msgspec.Struct):
    summary: list[_Summary] = []
    instruction: list[_Raw] | None = None
    trace_events: _Raw = _Raw(b"")


_decode = msgspec.json.Decoder(_Instruction).decode


class Neuron:
    """The `Reader` of Neuron device profiles."""

    def sniff(self, path: Path) -> bool:
        head = whole_files.head(path)
        return head.lstrip()[:1] == b"{" and b'"traceEvents"' not in head and any(key in head for key in _KEYS)

    def read(self, path: Path, how: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """The one device of the file. Raises `BadFile`."""
        document = whole_files.decode(path, how.limit, _NeuronDocument, "neuron-profile")
        if document.instruction is None:
            system = "Its key 'trace_events' is that of a system profile." if document.trace_events is not None else ""
            raise BadFile(f"{path}: the key 'instruction' is missing. {system}".rstrip(), "Give the device's profile.")
        rows = Gather(path.name, how.mark)
        device = (
            int(str(document.summary[0].nc_idx)) if document.summary and _counts(document.summary[0].nc_idx) else -1
        )
        for raw in document.instruction:
            try:
                _add(rows, whole_files.record(_decode, raw), device)
            except (msgspec.MsgspecError, RecursionError):
                rows.dropped += 1
        return rows.events([NOTE])


def _counts(core: int | str | None) -> bool:
    return str(core).isdecimal() and len(str(core)) < 9


def _add(rows: Gather, one: _Instruction, device: int) -> None:
    """An instruction on its engine and, as what launched it, a span that says what it is."""
    op = hlo.op_of(one.hlo_name or "")
    collective = hlo.collective_of(op)
    # The tensor engine's product stands for whatever operation the product was fused into.
    what = "matmul" if one.opcode.upper().startswith("MATMUL") else hlo.class_of(op.opcode, "", "")
    stop = one.timestamp + one.duration
    place = len(rows)
    span = f"{STATED}{what}" if what and not collective else op.opcode or one.opcode
    rows.span(span, OP, one.label, one.timestamp, stop, external=place)
    rows.work(
        f"{one.opcode} {op.name}".strip(),
        KERNEL,
        one.label or "instructions",
        device,
        one.timestamp,
        stop,
        external=place,
        collective=Collective(name=collective) if collective else None,
    )
