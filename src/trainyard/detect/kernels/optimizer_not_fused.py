"""optimizer_not_fused: the parameter update runs as many small kernels.

What it does: if a step's update runs dozens of kernels and none of them is fused, takes the gaps between them.
Why it matters: a parameter update is bound by memory traffic; many kernels add launches and more traffic.
Example: AdamW over 160 tensors one by one runs 2,000 kernels, and the device idles between them.
Remedy: `fused=True`, or `foreach=True` if the optimizer has no fused form.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.idle_gaps import Claimant, claimed_idle_rows, claimed_ns, has_unfused_optimizer
from trainyard.detect.row_changes import row_change
from trainyard.detect.select_events import owned_ns_per_step, select_work, starts_per_step
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run


class OptimizerNotFused:
    rule = "optimizer_not_fused"
    needs = ("ledger", "ranks")

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The gaps between the many kernels of an update that is not fused."""
        unfused_ranks = [rank for rank in ranks or () if has_unfused_optimizer(rank)]
        gaps_ns = claimed_ns(ledger, ranks, Claimant.OPTIMIZER) if unfused_ranks else 0
        if not matters(ledger, gaps_ns):
            return ()
        account = Account("compute", "optimizer")
        rows_by_rank = [select_work(rank, account.kind, account.what) for rank in unfused_ranks]
        kernels, busy_ns = starts_per_step(unfused_ranks, rows_by_rank), owned_ns_per_step(unfused_ranks, rows_by_rank)
        return finding(
            self.rule,
            ledger,
            account,
            gaps_ns,
            f"An unfused optimizer of {kernels:,} kernels per step leaves the device idle, which costs",
            evidence=f"the kernels themselves run for {units.show_time(busy_ns)}; none of them is fused",
            remedy="Use the optimizer's fused=True, or foreach=True.",
            sure=0.85,
            change=row_change(
                self.rule, unfused_ranks, idle=[claimed_idle_rows(rank, Claimant.OPTIMIZER) for rank in unfused_ranks]
            ),
        )
