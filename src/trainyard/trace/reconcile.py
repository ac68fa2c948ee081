"""A trace analysed by the definitions of two other tools, which shows why their figures differ from ours.

HTA: Holistic Trace Analysis 0.5.0, `get_temporal_breakdown` and `get_comm_comp_overlap`. TraceLens: 0.1.0, the GPU
timeline of its PyTorch report. Their rules on exact integers: the remaining differences are their rounding of floats.

`work.call` is the row in `events.host` of the call that launched each device interval, -1 if it is not in the file;
`work.name` is an index into `events.names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.events import COPY, I64, NOTE, Events


class ToolFigure(NamedTuple):
    """A figure under the tool's own name."""

    name: str
    ns: int


class ToolFigures(NamedTuple):
    """The figures of one rank by the rules of `tool`. `window`: (start, stop) ns from the first to the last work that
    the rules count. `differs`: a sentence for each rule that differs from trainyard's."""

    tool: str
    window: tuple[int, int]
    figures: tuple[ToolFigure, ...]
    differs: tuple[str, ...]

    def ns(self, name: str) -> int:
        """The figure of that name. Raises `StopIteration` for a name the tool does not have."""
        return next(figure.ns for figure in self.figures if figure.name == name)

    @property
    def overlap(self) -> float | None:
        """Overlapped communication as a fraction of all communication, by these figures; None without communication."""
        names = {figure.name: figure.ns for figure in self.figures}
        comm = names.get("communication_time", names.get("total_comm_time", 0))
        exposed = names.get("exposed_comm_time", 0)
        return (comm - exposed) / comm if comm else None


HTA_DIFFERS = (
    "With two or more marked steps HTA leaves the last one out: work launched after its mark began (the device-side "
    "mark, if the file has one), and all work whose launch is not in the file. We count all work.",
    "HTA rounds fractional timestamps to whole µs, starts up and ends down: a kernel loses up to 2 µs, and one "
    "between two whole µs counts -1 µs, which can end HTA with an AssertionError. We keep ns.",
    "HTA counts only kernels named nccl...Kernel as communication, and Memcpy, Memset or dma as memory: other "
    "libraries' collectives, and copies that ROCm does with kernels, count as computation.",
    "HTA's non_compute_time is exposed communication and exposed copies together. We book them separately.",
)
TRACELENS_DIFFERS = (
    "TraceLens leaves out work whose launch is not in the file, and work without a flow event from its launch (in "
    "older files, and in some from ROCm): these figures leave out the former only. We count all work, and link it by "
    "correlation.",
    "TraceLens counts memsets, and the kernels with which ROCm does them, as computation. We count them as copies.",
    "TraceLens counts kernels named nccl, rccl or cross_device_reduce as communication: other libraries' collectives "
    "count as computation.",
    "TraceLens adds floats of absolute µs, which cannot represent every ns: its sums are off by some ns, ours are "
    "exact.",
)
_HTA_COMM = re.compile(r"^nccl.*Kernel")
_HTA_MEMORY = re.compile(r"^Memcpy|^Memset|^dma")
_HTA_OTHER = re.compile(r".*Memcpy|Memset|.*Sync")
_LENS_COMM = re.compile(r"rccl|nccl|cross_device_reduce", re.IGNORECASE)
_LENS_COPY = re.compile(
    r"^(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?$"
)
_COMPUTE, _COMM, _MEMORY, _NEITHER = range(4)
"""Kinds of kernels, as the tools classify them by name."""


def _annotated_starts(events: Events) -> list[int]:
    """Starts of the file's step annotations, ns. `Events.marks` may be inferred, or begin after an evaluation."""
    if events.inferred or not events.marks:
        return []
    is_mark = np.array([name.startswith(events.mark) for name in events.names], bool)
    host = events.host
    return host.start[is_mark[host.name] & (host.what == NOTE) & (host.thread == events.main)].tolist()


def hta(events: Events) -> ToolFigures:
    """The figures by HTA's rules, in whole µs. Raises `BadInput` if its rules leave no device work."""
    work = events.work
    is_counted = np.ones(len(work), bool)
    begins = _annotated_starts(events)
    if len(begins) > 1:
        last = max([*begins, *(mark.start for mark in events.device_marks)])
        is_counted = (work.call >= 0) & (events.host.start[work.call] < last)
    start, stop = -(-work.start[is_counted] // 1000) * 1000, work.stop[is_counted] // 1000 * 1000
    if not len(start):
        raise BadInput(
            f"{events.source}: 0 device operations remain under HTA's rules.", "Its figures need two full steps."
        )
    kind = _kind_of_names(events, _hta_kind)[work.name[is_counted]]
    # Unions of the intervals of all work, of computation and of communication.
    busy, compute, comm = (
        _merge_intervals(start, stop),
        *(_merge_intervals(*_select_kind(kind, k, start, stop)) for k in (_COMPUTE, _COMM)),
    )
    window_ns = int(busy[1, -1] - busy[0, 0])
    idle_ns, compute_ns, comm_ns = window_ns - _total_ns(busy), _total_ns(compute), _total_ns(comm)
    overlapped_ns = _overlap_ns(_drop_empty(compute), _drop_empty(comm))
    return ToolFigures(
        tool="hta",
        window=(int(busy[0, 0]), int(busy[1, -1])),
        figures=(
            ToolFigure("kernel_time", window_ns),
            ToolFigure("idle_time", idle_ns),
            ToolFigure("compute_time", compute_ns),
            ToolFigure("non_compute_time", window_ns - compute_ns - idle_ns),
            ToolFigure("communication_time", comm_ns),
            ToolFigure("exposed_comm_time", comm_ns - overlapped_ns),
        ),
        differs=HTA_DIFFERS,
    )


def tracelens(events: Events) -> ToolFigures:
    """The figures of TraceLens' GPU timeline for one rank. Raises `BadInput` if its rules leave no device work.

    Work without a launch in the file is left out. Communication is exposed while no computation overlaps it; copies,
    while neither computation nor communication does.
    """
    work = events.work
    is_counted = work.call >= 0
    start, stop = work.start[is_counted], work.stop[is_counted]
    if not len(start):
        raise BadInput(
            f"{events.source}: 0 device operations remain under TraceLens' rules: the file contains no launch of any.",
            "Record with CPU activity (ProfilerActivity.CPU), so that the file has the launches.",
        )
    kind = _kind_of_names(events, _lens_kind)[work.name[is_counted]]
    kind[work.what[is_counted] == COPY] = _MEMORY
    compute, comm, memory = (_merge_intervals(*_select_kind(kind, k, start, stop)) for k in (_COMPUTE, _COMM, _MEMORY))
    busy = _merge_intervals(start, stop)
    window_ns, compute_ns = int(busy[1, -1] - busy[0, 0]), _total_ns(compute)
    exposed_comm_ns = _total_ns(comm) - _overlap_ns(compute, comm)
    return ToolFigures(
        tool="tracelens",
        window=(int(busy[0, 0]), int(busy[1, -1])),
        figures=(
            ToolFigure("computation_time", compute_ns),
            ToolFigure("exposed_comm_time", exposed_comm_ns),
            ToolFigure("exposed_memcpy_time", _total_ns(busy) - compute_ns - exposed_comm_ns),
            ToolFigure("busy_time", _total_ns(busy)),
            ToolFigure("idle_time", window_ns - _total_ns(busy)),
            ToolFigure("total_time", window_ns),
            ToolFigure("total_comm_time", _total_ns(comm)),
            ToolFigure("total_memcpy_time", _total_ns(memory)),
        ),
        differs=TRACELENS_DIFFERS,
    )


TOOLS: Mapping[str, Callable[[Events], ToolFigures]] = {"hta": hta, "tracelens": tracelens}


def _hta_kind(name: str) -> int:
    """The kind of a kernel by HTA's patterns for its name: `_COMPUTE`, `_COMM`, `_MEMORY` or `_NEITHER`."""
    if _HTA_COMM.match(name):
        return _COMM
    if _HTA_MEMORY.match(name):
        return _MEMORY
    return _NEITHER if _HTA_OTHER.match(name) else _COMPUTE


def _lens_kind(name: str) -> int:
    """The kind of a kernel by TraceLens' patterns for its name: `_COMPUTE`, `_COMM` or `_MEMORY`."""
    if _LENS_COPY.match(name):
        return _MEMORY
    return _COMM if _LENS_COMM.search(name) else _COMPUTE


def _kind_of_names(events: Events, kind_of: Callable[[str], int]) -> I64:
    """The kind of each of `events.names`, by `kind_of`: a function of the name."""
    return np.array([kind_of(name) for name in events.names], np.int64)


def _select_kind(kind: I64, wanted: int, start: I64, stop: I64) -> tuple[I64, I64]:
    return start[kind == wanted], stop[kind == wanted]


def _merge_intervals(start: I64, stop: I64) -> NDArray[np.int64]:
    """The union of intervals as [2, k]: begins and ends of its k stretches, in ns, sorted and disjoint.

    `start`, `stop`: ns of each interval, in any order. An interval that ends before it starts, as HTA's rounding
    produces, is kept with its negative length.
    """
    order = np.argsort(start, kind="stable")
    start, latest_stop = start[order], np.maximum.accumulate(stop[order])
    # A stretch of the union begins if all earlier intervals have ended. The slices are for empty input.
    begins_stretch = np.append(True, start[1:] > latest_stop[:-1])[: len(start)]
    ends_stretch = np.append(begins_stretch[1:], True)[: len(start)]
    return np.stack([start[begins_stretch], latest_stop[ends_stretch]])


def _total_ns(stretches: NDArray[np.int64]) -> int:
    """Sum of the lengths of [2, k] begins and ends."""
    return int((stretches[1] - stretches[0]).sum())


def _drop_empty(stretches: NDArray[np.int64]) -> NDArray[np.int64]:
    return stretches[:, stretches[1] > stretches[0]]


def _overlap_ns(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """The length (ns) of the intersection of two unions, |A| + |B| - |A or B|. `a`, `b`: [2, k] begins and ends."""
    both = np.concatenate([a, b], axis=1)
    return _total_ns(a) + _total_ns(b) - _total_ns(_merge_intervals(both[0], both[1]))
