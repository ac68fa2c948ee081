"""Makes the ranks of one data-parallel job from the recorded steps of different real ranks.

The public traces are of different jobs, so that nothing in them matches across ranks. A rank of the made job executes
one recorded step of a real rank, three times. The step has all rows of the real one except its communication; times
are scaled so that all ranks take about as long, with a variation of `VARIATION` from step to step. After each step all
ranks meet in an all-reduce: it begins on a rank when its step is over, and ends on all of them at once, `TRANSFER_NS`
after the last arrival. Their hosts wait for it. The late rank takes `LATE_FACTOR` times as long as the others.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard.events import CALL, I64, KERNEL, MEMSET, Collective, DeviceWork, Events, HostSpans, StepMark

START_NS, STEP_NS, TRANSFER_NS = 1_800_000_000 * 10**9, 100_000_000, 3_000_000
"""Start of the recording, length of a step without waiting, and the time of the all-reduce after the last arrival."""
LATE_FACTOR, VARIATION, STEPS = 1.15, 0.002, 3
"""Length of the late rank's steps over that of the others; standard deviation of a step's length; profiled steps."""
RANKS_PER_NODE, DEVICE = 8, "NVIDIA A100-SXM4-80GB"
_LAUNCH_NS, _MARGIN_NS = 10_000, 20_000
_KERNEL, _CALL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernelExC"
_Table = TypeVar("_Table", DeviceWork, HostSpans)


class Schedule(NamedTuple):
    """Times of the job's steps on the clock of rank 0. `own_ns`[ranks, STEPS]: length of each step without waiting;
    `begin`[STEPS]: when all ranks begin the step, ns since the epoch; `late`: the late rank."""

    own_ns: I64
    begin: I64
    late: int

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return len(self.own_ns)

    @property
    def price_ns(self) -> int:
        """ns per step by which the steps would be shorter if the late rank were as fast as the median of the others."""
        others = np.delete(self.own_ns, self.late, axis=0)
        return int((self.own_ns.max(axis=0) - others.max(axis=0)).mean())


def make_schedule(ranks: int) -> Schedule:
    """The schedule of a job of `ranks` ranks, whose late rank is two thirds through them. Always the same."""
    chance, late = random.Random(ranks), 2 * ranks // 3
    own_ns = np.array(
        [
            [
                int(STEP_NS * (LATE_FACTOR if rank == late else 1) * (1 + chance.gauss(0, VARIATION)))
                for _ in range(STEPS)
            ]
            for rank in range(ranks)
        ],
        np.int64,
    )
    lengths = own_ns.max(axis=0) + TRANSFER_NS
    return Schedule(own_ns, START_NS + np.concatenate([[0], np.cumsum(lengths)[:-1]]), late)


def recorded_step(events: Events) -> Events:
    """One step of a real rank, without its communication: the second of the file's marked steps, or the only one.

    The rows are those of host spans in the step, and of device work that they launched. Times begin at 0. Raises
    `ValueError` if the file marks no step or has no device work in it.
    """
    if not events.marks:
        raise ValueError(f"{events.source}: marks no step.")
    mark = events.marks[min(1, len(events.marks) - 1)]
    host, work = events.host, events.work
    in_host = (host.start >= mark.start) & (host.stop <= mark.stop)
    launched = np.append(in_host, False)[work.call]  # the last element is for -1, a call that was not recorded
    is_comm = np.array(["nccl" in name.lower() or "rccl" in name.lower() for name in events.names], bool)
    launched &= ~is_comm[work.name]
    launched[list(work.collectives)] = False
    if not launched.any():
        raise ValueError(f"{events.source}: no device work in a marked step.")
    host_rows, work_rows = np.flatnonzero(in_host), np.flatnonzero(launched)
    new_row = np.full(len(host) + 1, -1, np.int32)  # the last element is for -1
    new_row[host_rows] = np.arange(len(host_rows))
    kept_host, kept_work = _rows(host, host_rows), _rows(work, work_rows)
    kept_host = replace(kept_host, parent=new_row[kept_host.parent])
    kept_work = replace(kept_work, call=new_row[kept_work.call], op=new_row[kept_work.op])
    end = max(int(kept_host.stop.max(initial=mark.stop)), int(kept_work.stop.max()))
    begin = min(mark.start, int(kept_work.start.min()))
    return replace(
        events,
        host=_at(kept_host, kept_host.start - begin, kept_host.stop - begin),
        work=_at(kept_work, kept_work.start - begin, kept_work.stop - begin),
        span=(0, end - begin), marks=(), device_marks=(), inferred=None, stacks=None, memory=None, notes=(),
        cut_short=False,
        group_sizes=(), axis="",
    )  # fmt: skip


def job_rank(step: Events, rank: int, schedule: Schedule, host_name: str, shift_ns: int) -> Events:
    """Rank `rank` of the made job, which executes `step` (from `recorded_step`) `STEPS` times.

    `shift_ns`: by how much the clock of its host is ahead of that of rank 0.
    """
    names = (*step.names, _KERNEL, _CALL, "Memset (Device)", "cudaDeviceSynchronize")
    tables: list[tuple[HostSpans, DeviceWork]] = []
    marks: list[StepMark] = []
    rows = 0
    for number in range(STEPS):
        begin = int(schedule.begin[number]) + shift_ns
        own_ns = int(schedule.own_ns[rank, number])
        met = begin + int(schedule.own_ns[:, number].max()) + TRANSFER_NS
        host, work = _with_all_reduce(step, begin, own_ns, met, number, schedule.ranks, rows)
        tables.append((host, work))
        marks.append(StepMark(label=str(number), start=begin, stop=met))
        rows += len(host)
    return replace(
        step,
        source=f"rank{rank}",
        names=names,
        streams=(*step.streams, "all-reduce"),
        host=_concatenated([host for host, _ in tables]),
        work=_sorted_work([_earlier_work(step, int(schedule.begin[0]) + shift_ns), *(work for _, work in tables)]),
        marks=tuple(marks),
        span=(marks[0].start, marks[-1].stop),
        rank=rank,
        world=schedule.ranks,
        device=DEVICE,
        device_index=rank % RANKS_PER_NODE,
        devices=RANKS_PER_NODE,
        host_name=host_name,
        backend="nccl",
    )


def _with_all_reduce(
    step: Events, begin: int, own_ns: int, met: int, number: int, ranks: int, first_row: int
) -> tuple[HostSpans, DeviceWork]:
    """The rows of step `number`, from `begin` to `met` (ns), and its all-reduce, which begins after `own_ns`.

    `first_row`: number of host rows in the steps before, which the references to host rows are moved by.
    """
    length = step.span[1]
    busy_ns = own_ns - _MARGIN_NS
    host = _at(step.host, begin + step.host.start * busy_ns // length, begin + step.host.stop * busy_ns // length)
    work = _at(step.work, begin + step.work.start * busy_ns // length, begin + step.work.stop * busy_ns // length)
    launched_at = begin + busy_ns
    call = _row(
        HostSpans,
        start=launched_at,
        stop=launched_at + _LAUNCH_NS,
        name=len(step.names) + 1,
        thread=step.main,
        what=CALL,
    )
    waiting = _row(
        HostSpans,
        start=launched_at + _LAUNCH_NS,
        stop=met,
        name=len(step.names) + 3,
        thread=step.main,
        what=CALL,
    )
    kernel = _row(
        DeviceWork, start=begin + own_ns, stop=met, name=len(step.names), stream=len(step.streams), what=KERNEL,
        call=len(host),
    )  # fmt: skip
    reduced = Collective(name="all_reduce", group_name="0", members=ranks, seq=number, size=1 << 28)
    kernel = replace(kernel, collectives={0: reduced})
    host, work = _concatenated([host, call, waiting]), _concatenated([work, kernel])
    host = replace(host, parent=_moved(host.parent, first_row))
    return host, replace(work, call=_moved(work.call, first_row), op=_moved(work.op, first_row))


def _earlier_work(step: Events, begin: int) -> DeviceWork:
    """Work that ends before the first step begins (ns), so that the recording shows this step from its beginning."""
    stop = begin - _LAUNCH_NS
    return _row(DeviceWork, start=stop - _LAUNCH_NS, stop=stop, name=len(step.names) + 2, stream=0, what=MEMSET)


def _moved(rows: NDArray[np.int32], by: int) -> NDArray[np.int32]:
    """References to rows of which all have moved by `by`; -1 stays -1."""
    return np.where(rows >= 0, rows + by, -1).astype(np.int32)


def _row(table: type[_Table], **values: int) -> _Table:
    """A table of one row; columns that are not in `values` are -1, `backward` is 0."""
    wide = ("start", "stop", "bytes", "seq")
    small = ("what", "occupancy", "backward")
    values = {"backward": 0, **values}
    columns: dict[str, Any] = {
        name: np.array([values.get(name, -1)], np.int64 if name in wide else np.int8 if name in small else np.int32)
        for name in table.__struct_fields__
        if name != "collectives"
    }
    return table(**columns)


def _at(table: _Table, start: I64, stop: I64) -> _Table:
    """The table at other times, ns."""
    return replace(table, start=start, stop=stop)


def _rows(table: _Table, rows: I64) -> _Table:
    """The table with these rows only, without collectives."""
    columns: dict[str, Any] = {
        name: getattr(table, name)[rows] for name in table.__struct_fields__ if name != "collectives"
    }
    return replace(table, **columns, collectives={})


def _concatenated(tables: list[_Table]) -> _Table:
    """The rows of all tables, one after the other, with their collectives."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in tables[0].__struct_fields__
        if name != "collectives"
    }
    collectives: dict[int, Collective] = {}
    first = 0
    for table in tables:
        collectives |= {first + row: collective for row, collective in table.collectives.items()}
        first += len(table)
    return replace(tables[0], **columns, collectives=collectives)


def _sorted_work(tables: list[DeviceWork]) -> DeviceWork:
    """The device work of all steps, by start, ties longest first."""
    work = _concatenated(tables)
    order = np.lexsort((-work.stop, work.start))
    new_row = np.argsort(order)
    collectives = {int(new_row[row]): collective for row, collective in work.collectives.items()}
    return replace(_rows(work, order), collectives=collectives)
