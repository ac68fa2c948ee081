"""data_wait: the step waits for its next batch.

What it does: reads the data_wait account.
Why it matters: the device stands idle while the loader works.
Example: ResNet-50 with no loader workers waits 27 ms of every 146 ms step.
Remedy: more loader workers, prefetching, pinned memory, or cheaper decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.detect.wording import whole
from trainyard.events import Events
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_LEAST = 0.02


class DataWait:
    rule = "data_wait"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Events] | None) -> Sequence[Finding]:
        account = Account("data_wait")
        cost = ledger.by_account().get(account, 0)
        if not ledger.wall_ns or cost < _LEAST * ledger.wall_ns:
            return ()
        return (
            Finding(
                rule=self.rule,
                severity=severity(cost, ledger.wall_ns),
                account=account,
                cost_ns=cost,
                says=f"Waiting for data costs {units.show_time(cost)} of {whole(ledger)}",
                evidence="the host was fetching the next batch while the device idled",
                remedy=Remedy(says="Add loader workers, prefetch, pin memory, or make decoding cheaper.", wins_ns=cost),
                sure=0.95,
            ),
        )
