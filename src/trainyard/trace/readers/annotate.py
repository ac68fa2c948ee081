"""Interprets the texts of annotations and API calls: an op, a collective, a Python frame or a user annotation.

Several readers call the `add_...` functions, which add host spans to a `Gather`, the rows of a process. `thread` is any
key of a thread; `start` and `stop` are ns as the file states them: a span with invalid times is counted as dropped.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from trainyard.events import CALL, NOTE, OP, PYTHON, Collective
from trainyard.trace.readers.gather import PHASE, Gather
from trainyard.trace.readers.step_ranges import split_words
from trainyard.vendors.kernel_names import collective_of

# `torch.autograd.profiler.emit_nvtx` names ranges `aten::mm, seq = 5, op_id = 3, sizes = [...]`; those of
# record_function have no sequence number.
_EMIT_NVTX = re.compile(r"(?P<name>.{1,1000}?), (?:seq = (?P<seq>\d{1,18}), )?op_id = \d+(,|\Z)", re.S)
_OP_NAME = re.compile(r"\w+(::\w+)+(: \w+)?\Z")
_BARE_OP = re.compile(r"(?:aten|c10d|autograd)::[\w:]+(?:: \w+)?\Z")
_NCCL_CALL = re.compile(r"p?nccl(All|Reduce|Broadcast|Bcast|Send|Recv|Gather|Scatter)")
_PYTHON_FRAME = re.compile(r"\$(?P<file>.+\.py):(?P<line>\d+) (?P<function>.+)", re.S)
_BUILTIN = re.compile(r"\$(?P<module>[\w.<>]+) (?P<function>[\w.<>]+)\Z")
# Words of ranges around a phase. A range around several phases (`forward-backward`) sets none.
_PHASE_WORDS = (
    ("forward", {"forward", "fwd"}),
    ("backward", {"backward", "bwd", "backprop"}),
    ("optimizer", {"optimizer", "optimiser", "optim"}),
)
_OPTIMIZER_STEPS = re.compile(r"(deepspeed)?engine\.step|opt(im)?[._ ]?step|(adam\w*|sgd|lamb)[._ ]step", re.I)
_MAX_PHASE_WORDS = 8
_MPI_COLLECTIVES = (
    ("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all"),
    ("reducescatter", "reduce_scatter"), ("reduce", "reduce"), ("bcast", "broadcast"), ("barrier", "barrier"),
    ("send", "send_recv"), ("recv", "send_recv"), ("bsend", "send_recv"), ("ssend", "send_recv"),
    ("rsend", "send_recv"), ("mrecv", "send_recv"), ("probe", "send_recv"), ("mprobe", "send_recv"),
)  # fmt: skip
"""Beginnings of the names of MPI functions, without underscores and the `I` of those that do not block. A wait may be
for any of them."""


class Annotation(NamedTuple):
    """Name and kind (`events.OP`, ...) of a host span; `seq`: autograd sequence number, -1 if none."""

    name: str
    kind: int
    seq: int = -1


def parse_annotation(text: str) -> Annotation:
    """Parses an NVTX, roctx or TraceMe text; it is a user annotation (`events.NOTE`) if it has none of the forms that
    PyTorch and JAX write."""
    if emitted := _EMIT_NVTX.match(text):
        is_op = emitted["seq"] is not None or _OP_NAME.match(emitted["name"]) is not None
        return Annotation(emitted["name"], OP if is_op else NOTE, int(emitted["seq"] or -1))
    if _BARE_OP.match(text):
        return Annotation(text, OP)
    if frame := _PYTHON_FRAME.match(text):
        return Annotation(f"{frame['file']}({frame['line']}): {frame['function']}", PYTHON)
    if builtin := _BUILTIN.match(text):
        return Annotation(f"<built-in function {builtin['function']}>", PYTHON)
    return Annotation(text, NOTE)


@lru_cache(maxsize=65536)
def find_phase(text: str) -> str | None:
    """The phase that a range named so encloses: `forward`, `backward` or `optimizer`; None for other ranges."""
    words = split_words(text)
    phases = [phase for phase, names in _PHASE_WORDS if words & names]
    if len(words) > _MAX_PHASE_WORDS or len(phases) > 1 or "zero" in words:
        return None
    return phases[0] if phases else "optimizer" if _OPTIMIZER_STEPS.search(text) else None


def add_range(rows: Gather, text: str, thread: object, start: object, stop: object) -> None:
    """Adds an annotation as a host span. A call of a communication library becomes its collective's annotation; a range
    around a phase encloses a span that sets the phase."""
    # An annotation of record_function inside emit_nvtx: only its name counts.
    if (emitted := _EMIT_NVTX.match(text)) and emitted["seq"] is None and not _OP_NAME.match(emitted["name"]):
        text = emitted["name"]
    if text.startswith(rows.marks):  # a step
        rows.span(text, NOTE, thread, start, stop)
    elif collective := collective_call(text) or _named_collective(text):
        rows.span(f"nccl:{collective.name}", NOTE, thread, start, stop, collective=collective)
    else:
        name, kind, seq = parse_annotation(text)
        rows.span(name, kind, thread, start, stop, seq=seq)
        if kind == NOTE and (phase := find_phase(text)):
            rows.span(f"{PHASE}{phase}", NOTE, thread, start, stop)


def add_mpi_call(rows: Gather, name: str, thread: object, start: object, stop: object) -> None:
    """Adds a call of MPI (`name`: `MPI_Allreduce`) inside its collective's annotation: the host waits for its
    peers."""
    collective = Collective(name=_mpi_collective(name))
    rows.span(f"mpi:{collective.name}", NOTE, thread, start, stop, collective=collective)
    rows.span(name, CALL, thread, start, stop)


def _mpi_collective(name: str) -> str:
    """The collective of an MPI function: `MPI_Iallreduce` runs an all-reduce; `other` for the rest."""
    function = re.sub(r"^P?MPI_I?", "", name).lower().replace("_", "")
    return next((collective for prefix, collective in _MPI_COLLECTIVES if function.startswith(prefix)), "other")


def add_call(rows: Gather, name: str, thread: object, start: object, stop: object, correlation: int) -> None:
    """Adds a call of the driver or of a communication library; the latter inside its collective's annotation.
    `correlation`: id of the call, which the device work that it launched repeats; -1 for none."""
    if collective_call(name):
        add_range(rows, name, thread, start, stop)
    rows.span(name, CALL, thread, start, stop, correlation=correlation)


def collective_call(name: str) -> Collective | None:
    """The collective that a call of NCCL or RCCL (`ncclAllReduce`) runs; None for other calls."""
    call = _NCCL_CALL.match(name)
    return Collective(name=collective_of(name[call.start(1) :])) if call else None


def _named_collective(text: str) -> Collective | None:
    """The collective of an annotation of PyTorch (`nccl:all_reduce`); None for others."""
    return Collective(name=collective_of(text.partition(":")[2])) if text.startswith("nccl:") else None


def copy_name(source: str, target: str) -> str:
    """The name of a copy, the same for every profiler: `Memcpy HtoD` from `host` to `device`."""
    return f"Memcpy {source[:1].upper()}to{target[:1].upper()}"
