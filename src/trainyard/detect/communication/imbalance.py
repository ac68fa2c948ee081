"""imbalance: ranks come late in turn, because their work differs from step to step.

What it does: takes the waiting in collectives that no one rank is to blame for, and looks for the op class whose time
differs most between the ranks of a step, and for all-to-alls whose sizes differ (experts that get more tokens). Where
clocks do not agree, it looks for attention, routing and look-ups that differ from step to step.
Why it matters: each step lasts as long as its longest share, whoever has it.
Example: batches packed by number of sequences: attention takes 40 ms on one rank and 70 on another, in turn.
Remedy: balance sequences by their cost, pack to equal tokens, or give experts a capacity and a balancing loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from trainyard import units, words
from trainyard.booked import Booked
from trainyard.detect.communication.straggler import culprit_of, left_over
from trainyard.detect.finding_text import finding, matters
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

_UNEVEN = 1.5  # largest over mean: routers without a balancing loss exceed it, random fluctuation does not
_EXPLAINS = 0.5  # of the waiting: from here on the op class is named as the cause
_BY_LENGTH = ("attention", "moe_route", "embedding")
"""Op classes whose time depends on how a batch's sequences and tokens fall; the others' on the batch's size."""
_VARIES, _STEPS = 1.25, 4  # longest step over mean, and steps at least: fewer may be chance

_Spent = dict[str, dict[tuple[int, str], int]]
"""Op class -> (rank, step) -> ns."""


class Imbalance:
    rule = "imbalance"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, events: Sequence[Booked] | None) -> Sequence[Finding]:
        if ledger.scope.aligned == "no":
            return _by_steps(ledger, events or ())
        waits = {account: ns for account, ns in ledger.by_account().items() if account.kind == "straggler"}
        late = culprit_of(ledger, events)
        cost = left_over(ledger, late)
        if not waits or not matters(ledger, cost):
            return ()
        what, spread = _uneven_class(_spent(events or ()))
        uneven = _uneven_sizes(events or ())
        explained = spread >= _EXPLAINS * cost
        evidence: list[str] = []
        if explained:
            evidence.append(f"{words.OP_CLASSES[what].label} differs by {units.show_time(spread)} a step")
        if uneven >= _UNEVEN:
            evidence.append(f"the largest share of an all-to-all is {uneven:.1f} times the mean")
        who = "The other ranks too" if late is not None else "Ranks"
        return finding(
            self.rule,
            ledger,
            max(waits, key=lambda account: waits[account]),
            cost,
            f"{who} arrive late in turn, and wait for each other",
            evidence="; ".join(evidence) or "no op class differs by as much between the ranks",
            remedy=_remedy(what if explained else "", uneven),
            sure=0.8 if explained or uneven >= _UNEVEN else 0.5,
        )


def _by_steps(ledger: Ledger, events: Sequence[Booked]) -> Sequence[Finding]:
    """Where nobody's waiting can be seen: ranks that are alike each have their long step in turn, and all wait for it,
    so that a step costs the longest and not the mean."""
    spent = _spent([rank for rank in events if rank.collectives])
    lost: dict[str, int] = {}
    for what in _BY_LENGTH:
        times = list(spent.get(what, {}).values())
        if len(times) >= _STEPS and max(times) * len(times) >= _VARIES * sum(times):
            lost[what] = max(times) - sum(times) // len(times)
    what = max(lost, key=lambda what: lost[what], default="")
    if not what or not matters(ledger, lost[what]):
        return ()
    times = spent[what].values()
    return finding(
        Imbalance.rule,
        ledger,
        Account("compute", what),
        lost[what],
        f"{words.OP_CLASSES[what].label} differs from step to step, so that others wait",
        evidence=f"from {units.show_time(min(times))} to {units.show_time(max(times))} a step",
        remedy=_remedy(what, 0.0),
        # The others' waiting is not seen.
        sure=0.5,
    )


def _remedy(what: str, uneven: float) -> str:
    if uneven >= _UNEVEN or what == "moe_route":
        return "Balance the experts: a capacity, a balancing loss, or routing by expert choice."
    if what:
        return "Balance the batches: pack sequences to equal cost, or sort them by length across ranks."
    return "Look for noise on the hosts (other jobs, garbage collection, clocks) and for uneven batches."


def _spent(events: Sequence[Booked]) -> _Spent:
    """What each op class took of each rank in each full step."""
    spent: _Spent = defaultdict(dict)
    for rank in events:
        places = rank.step_of(rank.start)
        for what in words.OP_CLASSES:
            mine = rank.keys(lambda account, _, what=what: account.kind == "compute" and account.what == what)
            rows = np.flatnonzero(mine[rank.key] & (places >= 0))
            sums = np.bincount(places[rows], weights=rank.stop[rows] - rank.start[rows], minlength=len(rank.parts))
            for part, ns in zip(rank.parts, sums.tolist()):
                if ns and not part.partial:
                    spent[what][rank.events.rank, part.label] = int(ns)
    return spent


def _uneven_class(spent: _Spent) -> tuple[str, int]:
    """The op class whose time in a step differs most between ranks, and by how much its largest exceeds the mean."""
    excess: dict[str, int] = {}
    for what, times in spent.items():
        by_step: dict[str, list[int]] = defaultdict(list)
        for (_, step), ns in times.items():
            by_step[step].append(ns)
        over = [max(own) - sum(own) // len(own) for own in by_step.values()]
        excess[what] = sum(over) // len(over)
    what = max(excess, key=lambda what: excess[what], default="")
    return (what, excess[what]) if what and excess[what] > 0 else ("", 0)


def _uneven_sizes(events: Sequence[Booked]) -> float:
    """The largest all-to-all over the mean of its like, which are the same ones of a step on other ranks and in other
    steps; 0 where no two are alike for certain."""
    shares: list[list[int]] = []
    for rank in events:
        rows = [row for row, met in rank.collectives.items() if met.name == "all_to_all" and met.size > 0]
        places = rank.step_of(rank.start[rows]) if rows else np.empty(0, np.int64)
        for place in sorted(set(places.tolist()) - {-1}):
            own = sorted((row for row, at in zip(rows, places) if at == place), key=lambda row: int(rank.start[row]))
            shares.append([rank.collectives[row].size for row in own])
    if len(shares) < 2 or len({len(own) for own in shares}) != 1:
        return 0.0
    return sum(map(max, zip(*shares))) * len(shares) / sum(map(sum, shares))
