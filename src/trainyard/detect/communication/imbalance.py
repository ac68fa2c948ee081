"""imbalance: ranks arrive late in turn, because their work differs from step to step.

What it does: takes the waiting in collectives that is not due to a single rank, and looks for the op class whose time
differs most between the ranks of a step, and for all-to-alls whose sizes differ (experts that get more tokens). If
clocks are not aligned, it looks for attention, routing and embedding time that differs from step to step.
Why it matters: each step lasts as long as the rank with the most work.
Example: batches packed by number of sequences: attention takes 40 ms on one rank and 70 ms on another, in turn.
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
_EXPLAINS = 0.5  # of the waiting: from this fraction on, the op class is named as the cause
_BY_LENGTH = ("attention", "moe_route", "embedding")
"""Op classes whose time depends on sequence lengths and routing; that of the others depends on the batch size."""
_VARIES, _STEPS = 1.25, 4  # minimum of longest over mean step, and of steps: fewer may be chance

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
        op_class, spread = _uneven_class(_spent(events or ()))
        uneven = _uneven_sizes(events or ())
        explained = spread >= _EXPLAINS * cost
        evidence: list[str] = []
        if explained:
            evidence.append(f"{words.OP_CLASSES[op_class].label} differs by {units.show_time(spread)} a step")
        if uneven >= _UNEVEN:
            evidence.append(f"the largest message of an all-to-all is {uneven:.1f} times the mean")
        ranks = "The other ranks also" if late is not None else "Ranks"
        return finding(
            self.rule,
            ledger,
            max(waits, key=lambda account: waits[account]),
            cost,
            f"{ranks} arrive late in turn and wait for each other",
            evidence="; ".join(evidence) or "no op class differs enough between ranks to explain it",
            remedy=_remedy(op_class if explained else "", uneven),
            sure=0.8 if explained or uneven >= _UNEVEN else 0.5,
        )


def _by_steps(ledger: Ledger, events: Sequence[Booked]) -> Sequence[Finding]:
    """Findings without aligned clocks, when waiting is not visible. Similar ranks have a long step in turn and all
    others wait, so that each step takes the longest time and not the mean."""
    spent = _spent([rank for rank in events if rank.collectives])
    lost: dict[str, int] = {}
    for op_class in _BY_LENGTH:
        step_times = list(spent.get(op_class, {}).values())
        if len(step_times) >= _STEPS and max(step_times) * len(step_times) >= _VARIES * sum(step_times):
            lost[op_class] = max(step_times) - sum(step_times) // len(step_times)
    op_class = max(lost, key=lambda op_class: lost[op_class], default="")
    if not op_class or not matters(ledger, lost[op_class]):
        return ()
    step_times = spent[op_class].values()
    return finding(
        Imbalance.rule,
        ledger,
        Account("compute", op_class),
        lost[op_class],
        f"{words.OP_CLASSES[op_class].label} time varies from step to step, so that the other ranks wait",
        evidence=f"from {units.show_time(min(step_times))} to {units.show_time(max(step_times))} a step",
        remedy=_remedy(op_class, 0.0),
        # The other ranks' waiting is inferred, not measured.
        sure=0.5,
    )


def _remedy(op_class: str, uneven: float) -> str:
    if uneven >= _UNEVEN or op_class == "moe_route":
        return "Balance the experts: use a capacity limit, a load-balancing loss or expert-choice routing."
    if op_class:
        return "Balance the batches: pack sequences to equal cost, or sort them by length across ranks."
    return "Check the hosts for noise (other jobs, garbage collection, clocks) and the batches for uneven sizes."


def _spent(events: Sequence[Booked]) -> _Spent:
    """Time of each op class on each rank in each full step."""
    spent: _Spent = defaultdict(dict)
    for rank in events:
        step_index = rank.step_of(rank.start)
        for op_class in words.OP_CLASSES:
            account = ("compute", op_class)
            mine = rank.keys(lambda key, _, account=account: (key.kind, key.what) == account)
            rows = np.flatnonzero(mine[rank.key] & (step_index >= 0))
            sums = np.bincount(step_index[rows], weights=rank.stop[rows] - rank.start[rows], minlength=len(rank.parts))
            for part, ns in zip(rank.parts, sums.tolist()):
                if ns and not part.partial:
                    spent[op_class][rank.events.rank, part.label] = int(ns)
    return spent


def _uneven_class(spent: _Spent) -> tuple[str, int]:
    """The op class whose time in a step differs most between ranks, and by how many ns its maximum exceeds the mean."""
    excess: dict[str, int] = {}
    for op_class, times in spent.items():
        by_step: dict[str, list[int]] = defaultdict(list)
        for (_, step), ns in times.items():
            by_step[step].append(ns)
        over = [max(own) - sum(own) // len(own) for own in by_step.values()]
        excess[op_class] = sum(over) // len(over)
    op_class = max(excess, key=lambda op_class: excess[op_class], default="")
    return (op_class, excess[op_class]) if op_class and excess[op_class] > 0 else ("", 0)


def _uneven_sizes(events: Sequence[Booked]) -> float:
    """The largest all-to-all over the mean of the corresponding ones (same position in the step) on other ranks and in
    other steps; 0 if they cannot be matched."""
    shares: list[list[int]] = []
    for rank in events:
        rows = [row for row, met in rank.collectives.items() if met.name == "all_to_all" and met.size > 0]
        step_index = rank.step_of(rank.start[rows]) if rows else np.empty(0, np.int64)
        for step in sorted(set(step_index.tolist()) - {-1}):
            own = sorted((row for row, at in zip(rows, step_index) if at == step), key=lambda row: int(rank.start[row]))
            shares.append([rank.collectives[row].size for row in own])
    if len(shares) < 2 or len({len(own) for own in shares}) != 1:
        return 0.0
    return sum(map(max, zip(*shares))) * len(shares) / sum(map(sum, shares))
