"""gc_pauses: Python's garbage collector runs in the step.

What it does: takes the idle time while the collector runs, and counts the collections.
Why it matters: with many live objects a collection takes tens of ms, and each rank takes it at another time.
Example: one rank of eight collects in every step, and the other seven wait for it.
Remedy: `gc.freeze()` after start-up, and `gc.disable()` with a collection between steps, on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.blame import calls, told
from trainyard.detect.gaps import Answers, cost
from trainyard.detect.wording import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_LEAST = 0.01  # smaller than elsewhere: a healthy step has none at all


class GcPauses:
    rule = "gc_pauses"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        account = Account("launch_gap", "gc")
        ns = cost(ledger, events, Answers.GC)
        if not matters(ledger, ns, _LEAST):
            return ()
        return finding(
            self.rule,
            ledger,
            account,
            ns,
            "Garbage collection costs",
            evidence=told(events, [calls(rank, account) for rank in events]) if events else "from the ledger alone",
            remedy="Call gc.freeze() after start-up; collect between steps, on all ranks at once.",
            sure=0.9 if events else 0.7,
        )
