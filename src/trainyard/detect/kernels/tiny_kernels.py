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
from trainyard.detect.finding_text import finding, matters, mean_per_step
from trainyard.detect.idle_gaps import Claimant, plain_optimizer, rows
from trainyard.detect.kernel_storms import TINY_NS, Storm, storms, within
from trainyard.detect.select_events import account_of, commonest, count, owned
from trainyard.events import I64
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


class TinyKernels:
    rule = "tiny_kernels"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        if not events:
            return ()
        runs = [_runs_in_full_steps(rank) for rank in events]
        works = [_works(rank, own) for rank, own in zip(events, runs)]
        gaps = mean_per_step(events, (int(rank.idle.ns[rows(rank, Claimant.TINY)].sum()) for rank in events))
        busy = owned(events, works)
        if not matters(ledger, gaps + busy):
            return ()
        number = count(events, works)
        unit = "kernels" if events[0].on_device else "ops"
        longest = max(storm.count for own in runs for storm in own)
        return finding(
            self.rule,
            ledger,
            account_of(events, works),
            gaps + busy,
            f"{number:,} tiny {unit} a step (under {units.show_time(TINY_NS, 0)} each) cost",
            evidence=f"up to {longest:,} in a row, mostly {commonest(events, works)}; they run for "
            f"{units.show_time(busy)} and the gaps between them take {units.show_time(gaps)}",
            remedy="Fuse them: torch.compile, foreach or batched ops, or a CUDA graph.",
            sure=0.9,
        )


def _runs_in_full_steps(booked: Booked) -> list[Storm]:
    """Runs in full steps that no more specific rule claims."""
    runs = [storm for storm in storms(booked) if not storm.syncs]
    inside = booked.full(np.array([storm.start for storm in runs], np.int64))
    return [storm for storm, full in zip(runs, inside) if full]


def _works(booked: Booked, runs: list[Storm]) -> I64:
    plain = plain_optimizer(booked)
    work = booked.keys(
        lambda account, phase: account.kind in ("compute", "copy") and not (plain and phase == "optimizer")
    )
    return np.flatnonzero(work[booked.key] & within(runs, booked.start) & booked.full(booked.start))
