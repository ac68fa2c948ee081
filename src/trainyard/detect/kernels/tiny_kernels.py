"""tiny_kernels: long runs of kernels (on a CPU: ops) shorter than it takes to launch them.

What it does: finds runs of hundreds of works under 10 µs with nothing larger between, and takes all of their time:
the works and the gaps between them.
Why it matters: such a run goes as fast as the host can launch, and the device does next to nothing.
Example: updating 4,000 small tensors one by one takes 30 ms that one fused kernel does in 20 µs.
Remedy: fuse them (torch.compile, foreach and batched ops), or replay them as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import each_step, finding, matters
from trainyard.detect.idle_gaps import Answers, plain_optimizer, rows
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
        runs = [_of_full_steps(rank) for rank in events]
        works = [_works(rank, own) for rank, own in zip(events, runs)]
        gaps = each_step(events, (int(rank.idle.ns[rows(rank, Answers.TINY)].sum()) for rank in events))
        busy = owned(events, works)
        if not matters(ledger, gaps + busy):
            return ()
        number = count(events, works)
        what = "kernels" if events[0].on_device else "ops"
        longest = max(storm.count for own in runs for storm in own)
        return finding(
            self.rule,
            ledger,
            account_of(events, works),
            gaps + busy,
            f"A storm of {number:,} {what} under {units.show_time(TINY_NS, 0)} a step costs",
            evidence=f"up to {longest:,} in a row, most of them {commonest(events, works)}; they run for "
            f"{units.show_time(busy)} and the gaps between them take {units.show_time(gaps)}",
            remedy="Fuse them: torch.compile, foreach or batched ops, or a CUDA graph.",
            sure=0.9,
        )


def _of_full_steps(booked: Booked) -> list[Storm]:
    """Runs that no narrower rule answers for, in full steps."""
    found = [storm for storm in storms(booked) if not storm.syncs]
    inside = booked.full(np.array([storm.start for storm in found], np.int64))
    return [storm for storm, full in zip(found, inside) if full]


def _works(booked: Booked, runs: list[Storm]) -> I64:
    plain = plain_optimizer(booked)
    work = booked.keys(
        lambda account, phase: account.kind in ("compute", "copy") and not (plain and phase == "optimizer")
    )
    return np.flatnonzero(work[booked.key] & within(runs, booked.start) & booked.full(booked.start))
