"""coverage: how much of the step no rule could name.

What it does: adds unexplained time and kernels no table recognises.
Why it matters: above three per cent, the other figures may miss something; it is never spread over them.
Example: idle time before kernels whose launches are not in the file.
Remedy: profile with CPU activity on and from before the step, or teach the tables the kernel's name.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.detect.wording import whole
from trainyard.events import Events
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

LEAST = 0.03


class Coverage:
    rule = "coverage"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Events] | None) -> Sequence[Finding]:
        cost = ledger.unrecognised_ns
        if not ledger.wall_ns or cost <= LEAST * ledger.wall_ns:
            return ()
        unexplained = ledger.by_account().get(Account("unexplained"), 0)
        return (
            Finding(
                rule=self.rule,
                severity=severity(cost, ledger.wall_ns),
                account=Account("unexplained"),
                cost_ns=cost,
                says=f"No rule claims {units.show_time(cost)} of {whole(ledger)}",
                evidence=f"unexplained {units.show_time(unexplained)}, unrecognised kernels "
                f"{units.show_time(cost - unexplained)}",
                remedy=Remedy(says="Record CPU activity too, starting before the step."),
                sure=1.0,
            ),
        )
