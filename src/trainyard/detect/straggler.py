"""straggler: a rank that comes late and makes the others wait.

What it does: sums, for each rank, the time the others waited in collectives for it to arrive.
Why it matters: every rank pays for the slowest; the late one itself often shows the shortest step.
Example: in an 8-rank job, 7 ranks wait 4 ms of every 11 ms step, and most of it for rank 7.
Remedy: look at that rank's host, device clocks and share of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import units
from trainyard.detect.wording import whole
from trainyard.events import Events
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import Ledger
from trainyard.record import Run

_LEAST = 0.02
_ONE_RANK = 0.75  # of all waiting: from here on one rank is named; below it, the ranks took turns


class Straggler:
    rule = "straggler"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Events] | None) -> Sequence[Finding]:
        waits = {account: ns for account, ns in ledger.by_account().items() if account.kind == "straggler"}
        cost = sum(waits.values())
        if not _matters(ledger):
            return ()
        steps = len(ledger.scope.steps)
        late, total = late_rank(ledger), sum(ledger.late.values())
        step = f"{units.show_time(cost)} of {whole(ledger)}"
        if late is not None:
            says = f"Rank {late} comes late; the ranks wait {step}, most of it for rank {late}"
            remedy = f"Compare rank {late}'s row with the others': its host, its clocks, its share of the work."
        else:
            says = f"Ranks arrive late in turn; they wait {step} for each other"
            remedy = "Look for noise on the hosts or uneven work from step to step: no one rank is to blame."
        shares = ", ".join(
            f"rank {rank} {units.show_share(ns, total, 0)}"
            for rank, ns in sorted(ledger.late.items(), key=lambda item: -item[1])[:4]
        )
        return (
            Finding(
                rule=self.rule,
                severity=severity(cost, ledger.wall_ns),
                account=max(waits, key=lambda account: waits[account]),
                cost_ns=cost,
                says=says,
                evidence=f"share of the waiting caused: {shares}" if shares else "no record of who was late",
                remedy=Remedy(says=remedy, wins_ns=cost),
                # A few steps prove little: one hiccup of the host makes a late rank.
                sure=round(0.95 * steps / (steps + 2), 2),
            ),
        )


def late_rank(ledger: Ledger) -> int | None:
    """The one rank that most waiting is for, or None, also where waiting hardly matters."""
    if not ledger.late or not _matters(ledger):
        return None
    rank, ns = max(ledger.late.items(), key=lambda item: item[1])
    return rank if ns >= _ONE_RANK * sum(ledger.late.values()) else None


def _matters(ledger: Ledger) -> bool:
    return bool(ledger.wall_ns) and ledger.by_kind().get("straggler", 0) >= _LEAST * ledger.wall_ns
