"""How findings are worded and priced, alike for all rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trainyard import units
from trainyard.booked import Booked
from trainyard.events import I32, I64
from trainyard.finding import Finding, Remedy, severity
from trainyard.ledger import WINDOW, Account, Ledger

LEAST = 0.02
"""Of the step: below a fiftieth, noise of that size is common and nobody would act."""
_NAME_MOST = 60


def whole(ledger: Ledger) -> str:
    """`every 418.0 ms step`, or `the 58.1 ms window` where no mark says what a step is."""
    wall = units.show_time(ledger.wall_ns)
    return f"the {wall} window" if ledger.scope.steps == (WINDOW,) else f"every {wall} step"


def matters(ledger: Ledger, cost: int, least: float = LEAST) -> bool:
    """Whether a cost is at least that share of the step."""
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
    """`subject` and its price make the sentence: `Host syncs cost` -> `Host syncs cost 3.0 ms of every 9.1 ms step`.
    The remedy wins the whole cost where `wins` says nothing else."""
    return (
        Finding(
            rule=rule,
            severity=severity(cost, ledger.wall_ns),
            account=account,
            cost_ns=cost,
            says=f"{subject} {units.show_time(cost)} of {whole(ledger)}",
            evidence=evidence,
            remedy=Remedy(says=remedy, wins_ns=cost if wins is None else wins),
            sure=sure,
        ),
    )


def each_step(events: Sequence[Booked], totals: Iterable[int]) -> int:
    """The mean over ranks and full steps of what was summed over them, as a mean ledger has it."""
    return sum(int(total) for total in totals) // max(1, sum(rank.steps for rank in events))


def times(events: Sequence[Booked], counts: Iterable[int]) -> int:
    """As `each_step`, rounded up: something seen once is seen."""
    return -(-sum(int(count) for count in counts) // max(1, sum(rank.steps for rank in events)))


def summed(keys: I32, ns: I64) -> list[int]:
    """ns by key, from 0 on."""
    return np.bincount(keys, weights=ns).astype(np.int64).tolist()


def short(name: str) -> str:
    """A kernel's or frame's name, cut to what a sentence bears."""
    return name if len(name) <= _NAME_MOST else name[: _NAME_MOST - 1] + "…"
