"""low_occupancy: memory-bound kernels that leave most of each multiprocessor empty.

What it does: takes elementwise, norm, reduction, softmax, embedding and optimizer kernels of 20 µs and more whose
estimated occupancy is under 25 %, and counts the time they would save at 50 %.
Why it matters: such kernels hide memory latency with many warps in flight; with few, bandwidth is unused.
Example: a reduction over 16 rows of a million elements runs on 16 of 108 multiprocessors.
Remedy: larger tensors a kernel (batch, fuse), or a kernel that splits the long dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import (
    describe_names,
    dominant_account,
    owned_ns_per_step,
    select_work,
    starts_per_step,
)
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_MEMORY_BOUND = ("elementwise", "norm", "reduction", "softmax", "embedding", "optimizer")
"""Op classes checked. Matrix-unit kernels run well at low occupancy: they hide latency by instruction parallelism."""
_LOW_PERCENT = 25  # occupancy below which a kernel counts
_ENOUGH_PERCENT = 50  # occupancy: above half, more warps hardly help (CUDA C++ Best Practices Guide, occupancy)
_MIN_KERNEL_NS = 20_000  # shorter ones are launch-bound whatever their occupancy


class LowOccupancy:
    rule = "low_occupancy"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of long memory-bound kernels at low occupancy that half occupancy would save.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        device_ranks = [rank for rank in ranks or () if rank.on_device]
        rows_by_rank = [_select_low_occupancy(rank) for rank in device_ranks]
        lost_ns = mean_per_step(device_ranks, (_lost_ns(rank, rows) for rank, rows in zip(device_ranks, rows_by_rank)))
        if not matters(ledger, lost_ns):
            return ()
        kernel_count = starts_per_step(device_ranks, rows_by_rank)
        kernels = units.counted(kernel_count, "kernel")
        return finding(
            self.rule,
            ledger,
            dominant_account(device_ranks, rows_by_rank),
            lost_ns,
            f"{kernels} per step at under {_LOW_PERCENT} % occupancy lose{'s' if kernel_count == 1 else ''}",
            evidence=f"they run for {units.show_time(owned_ns_per_step(device_ranks, rows_by_rank))}, "
            + describe_names(device_ranks, rows_by_rank),
            remedy="Give each kernel more to do (batch, fuse), or use one that splits the long dimension.",
            # Occupancy is the profiler's estimate, and the gain from more of it is a rule of thumb.
            confidence=0.5,
            change=row_change(
                self.rule,
                device_ranks,
                rows=rows_by_rank,
                remaining=[
                    rank.events.work.occupancy[rows] / _ENOUGH_PERCENT for rank, rows in zip(device_ranks, rows_by_rank)
                ],
            ),
        )


def _select_low_occupancy(booked: Booked) -> I64:
    """Rows of the long memory-bound kernels in full steps whose occupancy is known and low."""
    kernels = select_work(booked, "compute", *_MEMORY_BOUND)
    occupancy = booked.events.work.occupancy[kernels]
    is_long = booked.stop[kernels] - booked.start[kernels] >= _MIN_KERNEL_NS
    return kernels[(occupancy >= 0) & (occupancy < _LOW_PERCENT) & is_long]


def _lost_ns(booked: Booked, rows: I64) -> int:
    """ns that these kernels would save at enough occupancy, if their time is inversely proportional to it."""
    missing_percent = _ENOUGH_PERCENT - booked.events.work.occupancy[rows].astype("int64")
    return int((booked.owned[rows] * missing_percent // _ENOUGH_PERCENT).sum())
