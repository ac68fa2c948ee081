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
from trainyard.detect.select_events import account_of, commonest, count, owned, work
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

_MEMORY_BOUND = ("elementwise", "norm", "reduction", "softmax", "embedding", "optimizer")
"""Op classes checked. Matrix-unit kernels run well at low occupancy: they hide latency by instruction parallelism."""
_LOW = 25
_ENOUGH = 50  # per cent: above half, more warps hardly help (CUDA C++ Best Practices Guide, occupancy)
_LONG_NS = 20_000  # shorter ones are launch-bound whatever their occupancy


class LowOccupancy:
    rule = "low_occupancy"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        ranks = [rank for rank in events or () if rank.on_device]
        rows = [_low(rank) for rank in ranks]
        lost = mean_per_step(ranks, (_lost(rank, own) for rank, own in zip(ranks, rows)))
        if not matters(ledger, lost):
            return ()
        return finding(
            self.rule,
            ledger,
            account_of(ranks, rows),
            lost,
            f"{count(ranks, rows):,} kernels a step at under {_LOW} % occupancy lose",
            evidence=f"they run for {units.show_time(owned(ranks, rows))}, mostly {commonest(ranks, rows)}",
            remedy="Give each kernel more to do (batch, fuse), or use one that splits the long dimension.",
            # Occupancy is the profiler's estimate, and the gain from more of it is a rule of thumb.
            sure=0.5,
        )


def _low(booked: Booked) -> I64:
    own = work(booked, "compute", *_MEMORY_BOUND)
    occupancy = booked.events.work.occupancy[own]
    long = booked.stop[own] - booked.start[own] >= _LONG_NS
    return own[(occupancy >= 0) & (occupancy < _LOW) & long]


def _lost(booked: Booked, rows: I64) -> int:
    missing = _ENOUGH - booked.events.work.occupancy[rows].astype("int64")
    return int((booked.owned[rows] * missing // _ENOUGH).sum())
