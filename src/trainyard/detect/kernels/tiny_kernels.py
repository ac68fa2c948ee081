"""tiny_kernels: long runs of kernels (on a CPU: ops) shorter than it takes to launch them.

What it does: finds runs of hundreds of kernels under 10 µs with nothing larger between, and takes all of their time:
the kernels and the gaps between them.
Why it matters: such a run is as slow as the host's launches, and the device is almost idle.
Example: updating 4,000 small tensors one by one takes 30 ms; one fused kernel takes 20 µs.
Remedy: fuse them (torch.compile, foreach and batched ops), or replay them as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows, claimed_ns, has_unfused_optimizer
from trainyard.detect.kernel_storms import TINY_NS, Storm, find_storms, is_in_storms
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import describe_names, dominant_account, owned_ns_per_step, starts_per_step
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.


class TinyKernels:
    rule = "tiny_kernels"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of runs of tiny kernels, and of the gaps between them that this rule claims.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        if not ranks:
            return ()
        storms_by_rank = [_storms_in_full_steps(rank) for rank in ranks]
        rows_by_rank = [_storm_rows(rank, rank_storms) for rank, rank_storms in zip(ranks, storms_by_rank)]
        if not any(len(rows) for rows in rows_by_rank):
            return ()
        gaps_ns = claimed_ns(ledger, ranks, Claimant.TINY)
        busy_ns = owned_ns_per_step(ranks, rows_by_rank)
        # Gaps of a run that begins in a partial step are claimed, but belong to no run in a full one.
        longest = max((storm.count for rank_storms in storms_by_rank for storm in rank_storms), default=0)
        if not longest or not matters(ledger, gaps_ns + busy_ns):
            return ()
        kernel_count = starts_per_step(ranks, rows_by_rank)
        unit = "kernels" if ranks[0].on_device else "ops"
        return finding(
            self.rule,
            ledger,
            dominant_account(ranks, rows_by_rank),
            gaps_ns + busy_ns,
            f"{kernel_count:,} tiny {unit} per step (under {units.show_time(TINY_NS, 0)} each) cost",
            evidence=f"up to {longest:,} in a row, {describe_names(ranks, rows_by_rank)}; they run for "
            f"{units.show_time(busy_ns)} and the gaps between them take {units.show_time(gaps_ns)}",
            remedy=_remedy(ranks),
            confidence=confidence(),
            change=row_change(
                self.rule,
                ranks,
                rows=rows_by_rank,
                idle=[claimed_idle_rows(rank, Claimant.TINY) for rank in ranks],
            ),
        )


def _remedy(ranks: Sequence[Booked]) -> str:
    """The remedy; graphs only on devices, PyTorch's ways only for its programs."""
    ways = ["torch.compile, foreach or batched ops"] if any(rank.events.shows_torch for rank in ranks) else []
    ways += ["a graph of the launches"] if ranks[0].on_device else []
    return f"Fuse them: {', or '.join(ways)}." if ways else "Fuse them."


def _storms_in_full_steps(booked: Booked) -> list[Storm]:
    """Runs in full steps that no more specific rule claims."""
    storms = [storm for storm in find_storms(booked) if not storm.syncs]
    inside = booked.full(np.array([storm.start for storm in storms], np.int64))
    return [storm for storm, full in zip(storms, inside) if full]


def _storm_rows(booked: Booked, storms: list[Storm]) -> I64:
    """Rows of the intervals in full steps and in `storms`, without those of an unfused optimizer, which has a rule."""
    unfused_optimizer = has_unfused_optimizer(booked)
    is_work_key = booked.keys(
        lambda account, phase: account.kind in ("compute", "copy") and not (unfused_optimizer and phase == "optimizer")
    )
    return np.flatnonzero(is_work_key[booked.key] & is_in_storms(storms, booked.start) & booked.full(booked.start))
