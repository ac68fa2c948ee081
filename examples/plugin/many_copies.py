"""many_copies: a rule that reports copies which take a tenth of a step or more."""

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import Account, Ledger
from trainyard.record import Run


class ManyCopies:
    rule = "many_copies"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        copies = {account: ns for account, ns in ledger.by_account().items() if account.kind == "copy"}
        cost_ns = sum(copies.values())
        if 10 * cost_ns < ledger.wall_ns or not cost_ns:
            return ()
        largest: Account = max(copies, key=lambda account: copies[account])
        remedy = Remedy(description="Copy from pinned memory on a stream of its own, one batch ahead.")
        return (
            Finding(
                rule=self.rule,
                severity=severity(cost_ns, ledger.wall_ns),
                account=largest,
                cost_ns=cost_ns,
                summary=f"Exposed copies cost up to {cost_ns / 1e6:.1f} ms of every {ledger.wall_ns / 1e6:.1f} ms step",
                subject="Exposed copies cost",
                change=Change(text="copy=0"),
                evidence=f"most of it in {largest}",
                remedy=remedy,
                confidence=0.9,
            ),
        )
