"""A trace by the definitions of two other tools, so that a user can tell why their figures differ from ours.

HTA: Holistic Trace Analysis 0.5.0, `get_temporal_breakdown` and `get_comm_comp_overlap`. TraceLens: 0.1.0, the GPU
timeline of its PyTorch report. Their rules over exact integers: what remains between us is how they round floats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.events import COPY, I64, Events


class ToolFigure(NamedTuple):
    """A figure under the tool's own name for it."""

    name: str
    ns: int


class ToolFigures(NamedTuple):
    """One rank by the rules of `tool`. `window`: (start, stop) ns that its rules look at. `differs`: a sentence for
    each rule that is not ours."""

    tool: str
    window: tuple[int, int]
    figures: tuple[ToolFigure, ...]
    differs: tuple[str, ...]

    def ns(self, name: str) -> int:
        """The figure of that name. Raises `StopIteration` for a name the tool does not have."""
        return next(figure.ns for figure in self.figures if figure.name == name)

    @property
    def overlap(self) -> float | None:
        """The share of communication that computation hides, by these figures; None without communication."""
        names = {figure.name: figure.ns for figure in self.figures}
        comm = names.get("communication_time", names.get("total_comm_time", 0))
        exposed = names.get("exposed_comm_time", 0)
        return (comm - exposed) / comm if comm else None


HTA_DIFFERS = (
    "With two or more marked steps HTA leaves the last one out: what was launched after its mark began (the mark over "
    "device work, where the file draws one), and all work whose launch is not in the file. We count all work.",
    "HTA rounds stamps that have a fraction to whole µs, starts up and ends down: a kernel loses up to 2 µs, and one "
    "between two whole µs counts -1 µs, which can end HTA with an AssertionError. We keep ns.",
    "HTA calls communication only what is named nccl...Kernel, and memory what is named Memcpy, Memset or dma: other "
    "libraries' collectives, and copies that ROCm does by kernels, count as computation.",
    "HTA's non_compute_time is exposed communication and exposed copies together. We book them apart.",
)
TRACELENS_DIFFERS = (
    "TraceLens leaves out work whose launch is not in the file, or that no flow arrow joins to it (in older files, and "
    "for some of ROCm's): these figures leave out the first only. We count all work, and link it by correlation.",
    "TraceLens counts memsets, and the kernels by which ROCm does them, as computation. With us they are copies.",
    "TraceLens calls communication what is named nccl, rccl or cross_device_reduce: other libraries' collectives count "
    "as computation.",
    "TraceLens adds floats of absolute µs, which do not hold every ns: its sums are off by some ns. Ours are exact.",
)
_HTA_COMM = re.compile(r"^nccl.*Kernel")
_HTA_MEMORY = re.compile(r"^Memcpy|^Memset|^dma")
_HTA_OTHER = re.compile(r".*Memcpy|Memset|.*Sync")
_LENS_COMM = re.compile(r"rccl|nccl|cross_device_reduce", re.IGNORECASE)
_LENS_COPY = re.compile(
    r"^(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?$"
)
_COMPUTE, _COMM, _MEMORY, _NEITHER = range(4)


def hta(events: Events) -> ToolFigures:
    """By HTA's rules; every figure is a whole number of µs. Raises `BadInput` where its rules leave no device work."""
    work = events.work
    kept = np.ones(len(work), bool)
    if len(events.marks) > 1:
        last = max(mark.start for mark in (*events.marks, *events.device_marks))
        kept = (work.call >= 0) & (events.host.start[work.call] < last)
    start, stop = -(-work.start[kept] // 1000) * 1000, work.stop[kept] // 1000 * 1000
    if not len(start):
        raise BadInput(
            f"{events.source}: by HTA's rules it holds 0 device operations.", "Its figures need two full steps."
        )
    kind = _by_name(events, _hta_kind)[work.name[kept]]
    busy, compute, comm = _merged(start, stop), *(_merged(*_of(kind, k, start, stop)) for k in (_COMPUTE, _COMM))
    whole = int(busy[1, -1] - busy[0, 0])
    idle, computing, communicating = whole - _length(busy), _length(compute), _length(comm)
    hidden = _common(_positive(compute), _positive(comm))
    return ToolFigures(
        "hta",
        (int(busy[0, 0]), int(busy[1, -1])),
        (
            ToolFigure("kernel_time", whole),
            ToolFigure("idle_time", idle),
            ToolFigure("compute_time", computing),
            ToolFigure("non_compute_time", whole - computing - idle),
            ToolFigure("communication_time", communicating),
            ToolFigure("exposed_comm_time", communicating - hidden),
        ),
        HTA_DIFFERS,
    )


def tracelens(events: Events) -> ToolFigures:
    """By TraceLens' rules. Raises `BadInput` where its rules leave no device work."""
    work = events.work
    kept = work.call >= 0
    start, stop = work.start[kept], work.stop[kept]
    if not len(start):
        raise BadInput(
            f"{events.source}: by TraceLens' rules it holds 0 device operations: none has its launch in the file."
        )
    kind = _by_name(events, _lens_kind)[work.name[kept]]
    kind[work.what[kept] == COPY] = _MEMORY
    compute, comm, memory = (_merged(*_of(kind, k, start, stop)) for k in (_COMPUTE, _COMM, _MEMORY))
    busy = _merged(start, stop)
    total, computing = int(busy[1, -1] - busy[0, 0]), _length(compute)
    exposed_comm = _length(comm) - _common(compute, comm)
    return ToolFigures(
        "tracelens",
        (int(busy[0, 0]), int(busy[1, -1])),
        (
            ToolFigure("computation_time", computing),
            ToolFigure("exposed_comm_time", exposed_comm),
            ToolFigure("exposed_memcpy_time", _length(busy) - computing - exposed_comm),
            ToolFigure("busy_time", _length(busy)),
            ToolFigure("idle_time", total - _length(busy)),
            ToolFigure("total_time", total),
            ToolFigure("total_comm_time", _length(comm)),
            ToolFigure("total_memcpy_time", _length(memory)),
        ),
        TRACELENS_DIFFERS,
    )


TOOLS: Mapping[str, Callable[[Events], ToolFigures]] = {"hta": hta, "tracelens": tracelens}


def _hta_kind(name: str) -> int:
    if _HTA_COMM.match(name):
        return _COMM
    if _HTA_MEMORY.match(name):
        return _MEMORY
    return _NEITHER if _HTA_OTHER.match(name) else _COMPUTE


def _lens_kind(name: str) -> int:
    if _LENS_COPY.match(name):
        return _MEMORY
    return _COMM if _LENS_COMM.search(name) else _COMPUTE


def _by_name(events: Events, kind_of: Callable[[str], int]) -> I64:
    """For each name of the trace, what `kind_of` says of it."""
    return np.array([kind_of(name) for name in events.names], np.int64)


def _of(kind: I64, wanted: int, start: I64, stop: I64) -> tuple[I64, I64]:
    return start[kind == wanted], stop[kind == wanted]


def _merged(start: I64, stop: I64) -> NDArray[np.int64]:
    """[2, k]: begins and ends of the stretches that the intervals cover; one that ends before it starts is kept."""
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(stop[order])
    fresh = np.append(True, start[1:] > latest[:-1])[: len(start)]
    last = np.append(fresh[1:], True)[: len(start)]
    return np.stack([start[fresh], latest[last]])


def _length(stretches: NDArray[np.int64]) -> int:
    return int((stretches[1] - stretches[0]).sum())


def _positive(stretches: NDArray[np.int64]) -> NDArray[np.int64]:
    return stretches[:, stretches[1] > stretches[0]]


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """How long both are covered."""
    both = np.concatenate([a, b], axis=1)
    return _length(a) + _length(b) - _length(_merged(both[0], both[1]))
