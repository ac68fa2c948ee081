"""gc_pauses: Python's garbage collector runs in the step.

What it does: takes the idle time while the collector runs, and counts the collections.
Why it matters: with many live objects a collection takes tens of ms, and ranks collect at different times.
Example: one rank of eight collects in every step, and the other seven wait for it.
Remedy: `gc.freeze()` after start-up, and `gc.disable()` with a collection between steps, on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.booked import Booked
from trainyard.detect.idle_gaps import host_stop_finding
from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.record import Run


class GcPauses:
    rule = "gc_pauses"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The idle time during garbage collections.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        return host_stop_finding(
            self.rule,
            cause="gc",  # the account launch_gap/gc
            ledger=ledger,
            ranks=ranks,
            subject="Garbage collection costs",
            remedy_for=_remedy_for,
        )


def _remedy_for(names: Sequence[str]) -> str:
    """The remedy for the collecting calls: collections that the program requests, or automatic ones."""
    if any("collect" in name for name in names):
        return "Remove gc.collect() from the step, or call it rarely, on all ranks at once."
    return "Call gc.freeze() after start-up; collect between steps, on all ranks at once."
