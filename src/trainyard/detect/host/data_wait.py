"""data_wait: the step waits for its next batch.

What it does: reads the data_wait account.
Why it matters: the device is idle while the data loader works.
Example: ResNet-50 without loader workers waits 33 ms of every 152 ms step.
Remedy: more loader workers, prefetching, pinned memory, or cheaper decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.change import Change
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run


class DataWait:
    rule = "data_wait"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The time of the data_wait account."""
        account = Account("data_wait")
        cost_ns = ledger.by_account().get(account, 0)
        if not matters(ledger, cost_ns):
            return ()
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            "Waiting for data costs",
            evidence="the host was fetching the next batch while the device idled",
            remedy="Add loader workers, prefetch, pin memory, or make decoding cheaper.",
            sure=0.95,
            change=Change(text=f"{account}=0"),
        )
