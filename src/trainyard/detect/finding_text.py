"""Wording and cost of findings, shared by all rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.events import I32, I64
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import WINDOW, Account, Ledger

LEAST = 0.02
"""Smallest cost to report, as a fraction of the step: noise of up to 2 % is common."""
_NAME_MOST = 60


def describe_step(ledger: Ledger) -> str:
    """`every 418.0 ms step`, or `the 58.1 ms window` if the trace has no step marks."""
    wall = units.show_time(ledger.wall_ns)
    return f"the {wall} window" if ledger.scope.steps == (WINDOW,) else f"every {wall} step"


def matters(ledger: Ledger, cost: int, least: float = LEAST) -> bool:
    """Whether a cost (ns) is at least the fraction `least` of the step."""
    return cost > 0 and cost >= least * ledger.wall_ns


def finding(
    rule: str,
    ledger: Ledger,
    account: Account,
    cost: int,
    subject: str,
    *,
    evidence: str,
    remedy: str,
    sure: float,
    wins: int | None = None,
) -> tuple[Finding]:
    """One finding. Its sentence is `subject` and the cost: `Host syncs cost` -> `Host syncs cost 3.0 ms of every 9.1 ms
    step`. `wins`: ns a step that the remedy saves at most; by default the whole cost."""
    return (
        Finding(
            rule=rule,
            severity=severity(cost, ledger.wall_ns),
            account=account,
            cost_ns=cost,
            says=f"{subject} {units.show_time(cost)} of {describe_step(ledger)}",
            evidence=evidence,
            remedy=Remedy(says=remedy, wins_ns=cost if wins is None else wins),
            sure=sure,
        ),
    )


def mean_per_step(events: Sequence[Booked], totals: Iterable[int]) -> int:
    """The mean over ranks and full steps of one total per rank, rounded down, as in a mean ledger."""
    return sum(int(total) for total in totals) // max(1, sum(rank.steps for rank in events))


def count_per_step(events: Sequence[Booked], counts: Iterable[int]) -> int:
    """As `mean_per_step`, rounded up, so that a single occurrence counts as one."""
    return -(-sum(int(count) for count in counts) // max(1, sum(rank.steps for rank in events)))


def sum_by_key(keys: I32, ns: I64) -> list[int]:
    """Sum of `ns` for each key 0, 1, ..."""
    return np.bincount(keys, weights=ns).astype(np.int64).tolist()


def shorten(name: str) -> str:
    """The name of a kernel or frame, cut to 60 characters."""
    return name if len(name) <= _NAME_MOST else name[: _NAME_MOST - 1] + "…"
