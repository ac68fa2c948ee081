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
from trainyard.detect.idle_gaps import Claimant, cost, plain_optimizer
from trainyard.detect.select_events import count, owned, work
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run


class OptimizerNotFused:
    rule = "optimizer_not_fused"
    needs = ("ledger", "events")

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        plain = [rank for rank in events or () if plain_optimizer(rank)]
        gaps = cost(ledger, events, Claimant.OPTIMIZER) if plain else 0
        if not matters(ledger, gaps):
            return ()
        account = Account("compute", "optimizer")
        works = [work(rank, account.kind, account.what) for rank in plain]
        return finding(
            self.rule,
            ledger,
            account,
            gaps,
            f"An unfused optimizer of {count(plain, works):,} kernels a step leaves the device idle for",
            evidence=f"the kernels themselves run for {units.show_time(owned(plain, works))}; none of them is fused",
            remedy="Use the optimizer's fused=True, or foreach=True.",
            sure=0.85,
        )
