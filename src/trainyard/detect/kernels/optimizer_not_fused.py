"""optimizer_not_fused: the parameter update runs as many small kernels.

What it does: if a step's update runs dozens of kernels and none of them is fused, takes the gaps between them.
Why it matters: a parameter update is bound by memory traffic; many kernels add launches and more traffic.
Example: AdamW over 160 tensors one by one runs 2,000 kernels, and the device idles between them.
Remedy: `fused=True`, or `foreach=True` if the optimizer has no fused form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows, claimed_ns, has_unfused_optimizer
from trainyard.detect.largest_intervals import largest_idle
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import owned_ns_per_step, select_work, starts_per_step
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_NOT_UPDATE_DOUBT = 0.05  # that the phase contains more than the update
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""PyTorch's optimizers that have fused=True; all of them, and most others, have foreach=True."""
_STEP_SPAN = re.compile(r"^Optimizer\.step#(\w+)\.step$")


class OptimizerNotFused:
    rule = "optimizer_not_fused"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The gaps between the many kernels of an update that is not fused.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        unfused_ranks = [rank for rank in ranks or () if has_unfused_optimizer(rank)]
        gaps_ns = claimed_ns(ledger, ranks, Claimant.OPTIMIZER) if unfused_ranks else 0
        if not matters(ledger, gaps_ns):
            return ()
        account = Account("compute", "optimizer")
        rows_by_rank = [select_work(rank, account.kind, account.what) for rank in unfused_ranks]
        kernels, busy_ns = starts_per_step(unfused_ranks, rows_by_rank), owned_ns_per_step(unfused_ranks, rows_by_rank)
        largest = largest_idle(unfused_ranks, [claimed_idle_rows(rank, Claimant.OPTIMIZER) for rank in unfused_ranks])
        return finding(
            self.rule,
            ledger,
            account,
            gaps_ns,
            f"An unfused optimizer of {kernels:,} kernels per step leaves the device idle, which costs",
            evidence=f"the kernels themselves run for {units.show_time(busy_ns)}; none of them is fused",
            remedy=_remedy(unfused_ranks),
            confidence=confidence(
                doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0,
                _NOT_UPDATE_DOUBT,
            ),
            largest=largest,
            change=row_change(
                self.rule, unfused_ranks, idle=[claimed_idle_rows(rank, Claimant.OPTIMIZER) for rank in unfused_ranks]
            ),
        )


def _remedy(ranks: Sequence[Booked]) -> str:
    """The remedy by the classes of optimizers that the files name (`Optimizer.step#AdamW.step`), of which only
    `_FUSED` have a fused form; without names, by whether the job uses PyTorch."""
    names = {match[1] for rank in ranks for name in rank.events.names if (match := _STEP_SPAN.match(name))}
    if names and not names & set(_FUSED):
        return f"Use foreach=True, if {', '.join(sorted(names))} has it, or compile the optimizer's step."
    if names:
        return "Use the optimizer's fused=True, or foreach=True."
    if any(rank.events.shows_torch for rank in ranks):
        return "Use an optimizer with fused=True or foreach=True, or compile its step."
    return "Fuse the update into a few kernels over all tensors."
