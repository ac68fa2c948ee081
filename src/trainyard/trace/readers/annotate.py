"""Interprets the texts of annotations and API calls: an op, a collective, a Python frame or a user annotation."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainyard.events import CALL, NOTE, OP, PYTHON, Collective
from trainyard.trace.readers.gather import Gather
from trainyard.vendors.kernel_names import collective_of

# `torch.autograd.profiler.emit_nvtx` names ranges `aten::mm, seq = 5, op_id = 3, sizes = [...]`.
_EMIT_NVTX_OP = re.compile(r"(?P<name>[\w:]+(?:: \w+)?), (?:seq|op_id) = ")
_BARE_OP = re.compile(r"(?:aten|c10d|autograd)::[\w:]+(?:: \w+)?\Z")
_SEQUENCE_NUMBER = re.compile(r", seq = (\d{1,18})\b")
_NCCL_CALL = re.compile(r"p?nccl(All|Reduce|Broadcast|Bcast|Send|Recv|Gather|Scatter)")
_PYTHON_FRAME = re.compile(r"\$(?P<file>.+\.py):(?P<line>\d+) (?P<function>.+)", re.S)


class Annotation(NamedTuple):
    """Name and kind (`events.OP`, ...) of a host span; `seq`: autograd sequence number, -1 if none."""

    name: str
    kind: int
    seq: int = -1


def parse_annotation(text: str) -> Annotation:
    """Parses an NVTX, roctx or TraceMe text."""
    if op := _EMIT_NVTX_OP.match(text):
        seq = _SEQUENCE_NUMBER.search(text)
        return Annotation(op["name"], OP, int(seq[1]) if seq else -1)
    if _BARE_OP.match(text):
        return Annotation(text, OP)
    if frame := _PYTHON_FRAME.match(text):
        return Annotation(f"{frame['file']}({frame['line']}): {frame['function']}", PYTHON)
    return Annotation(text, NOTE)


def add_range(rows: Gather, text: str, thread: object, start: object, stop: object) -> None:
    """Adds an annotation as a host span. A call of a communication library becomes its collective's annotation."""
    if text.startswith(rows.marks):
        rows.span(text, NOTE, thread, start, stop)
    elif collective := collective_call(text):
        rows.span(f"nccl:{collective.name}", NOTE, thread, start, stop, collective=collective)
    else:
        name, kind, seq = parse_annotation(text)
        rows.span(name, kind, thread, start, stop, seq=seq)


def add_call(rows: Gather, name: str, thread: object, start: object, stop: object, correlation: int) -> None:
    """Adds a call of the driver or of a communication library; the latter inside its collective's annotation."""
    if collective_call(name):
        add_range(rows, name, thread, start, stop)
    rows.span(name, CALL, thread, start, stop, correlation=correlation)


def collective_call(name: str) -> Collective | None:
    """The collective that a call of NCCL or RCCL (`ncclAllReduce`) runs; None for other calls."""
    call = _NCCL_CALL.match(name)
    return Collective(name=collective_of(name[call.start(1) :])) if call else None


def copy_name(source: str, target: str) -> str:
    """`Memcpy HtoD` for `host` and `device`: the same name for every profiler."""
    return f"Memcpy {source[:1].upper()}to{target[:1].upper()}"
