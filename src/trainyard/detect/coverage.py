"""coverage: the part of the step that could not be attributed.

What it does: adds unexplained time and the time of unrecognised kernels.
Why it matters: above 3 % of the step, the other figures may be incomplete; this time is never spread over them.
Example: idle time before kernels whose launches are not in the file.
Remedy: profile with CPU activity on and from before the step, or add the kernel's name to the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.booked import Booked
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

MIN_UNEXPLAINED_FRACTION = 0.03


class Coverage:
    rule = "coverage"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """Unexplained and unrecognised time, if it is a relevant part of the step."""
        cost_ns = ledger.unrecognised_ns
        if not matters(ledger, cost_ns, MIN_UNEXPLAINED_FRACTION):
            return ()
        account = Account("unexplained")
        unexplained = ledger.by_account().get(account, 0)
        unrecognised = units.show_time(cost_ns - unexplained)
        return finding(
            self.rule,
            ledger,
            account,
            cost_ns,
            "Unattributed time takes",
            evidence=f"unexplained {units.show_time(unexplained)}, unrecognised kernels {unrecognised}",
            remedy="Record CPU activity too, and start the profiler before the step.",
            wins=0,
            sure=1.0,
        )
