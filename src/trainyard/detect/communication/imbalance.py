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
from trainyard.change import Change
from trainyard.detect.communication.straggler import (
    culprit_of,
    doubt_of_chance,
    removal_of,
    waits_of_others_ns,
)
from trainyard.detect.confidence import confidence, doubt_of_recurrence
from trainyard.detect.finding_text import finding, matters
from trainyard.detect.largest_intervals import largest_waits
from trainyard.finding import Finding
from trainyard.ledger import Account, Ledger
from trainyard.record import Run

# `Booked` is one rank's profile. Its columns have one row per interval of work: `start`, `stop`, `owned` (ns booked to
# it), `name` (index into `events.names`), `key` (index into `pairs`: account and phase), `begins` (False if it resumes
# interrupted work). `keys(test)` is a mask over `pairs`, `names(test)` one over names; index them with these columns.
# `idle` has one row per idle interval of the device (on a CPU: of the training thread). `full(times)`: mask of the
# times in full steps.

_MIN_SIZE_RATIO = 1.5  # largest over mean: routers without a balancing loss exceed it, random fluctuation does not
_MIN_EXPLAINED_FRACTION = 0.5  # of the waiting: from this fraction on, the op class is named as the cause
_LENGTH_DEPENDENT = ("attention", "moe_route", "embedding")
"""Op classes whose time depends on sequence lengths and routing; that of the others depends on the batch size."""
_NO_CAUSE_DOUBT = 0.55  # if nothing shows why ranks are late: the work may be even and the hosts disturbed
_SIMILAR_EXCESS = 0.6  # of the most uneven class's fraction: if all classes differ so, batches or clocks may differ
_CLASS_DOUBT = 0.15  # that the op class which differs most is not the cause
_MIN_EXCESS = 0.1  # of the op class's mean time: equal work varies by some per cent
_MIN_TIME_RATIO = 1.25  # longest over mean time of an op class in a step: less may be chance
_MIN_STEPS = 4  # steps of all ranks together that are compared: fewer may be chance

_ClassTimes = dict[str, dict[tuple[int, str], int]]
"""Op class -> (rank, step label) -> ns that the class takes in this full step of this rank."""


class Imbalance:
    rule = "imbalance"
    needs = ("ledger",)

    def check(self, ledger: Ledger, run: Run | None, ranks: Sequence[Booked] | None) -> Sequence[Finding]:
        """The waiting that no single rank causes, with the op class whose time is most uneven between ranks.

        `ledger`: the mean step ledger. `run`: unused; the `Detector` protocol has it. `ranks`: the booked profile of
        each rank, None if only a ledger is available; row arrays index its columns, which have one row per interval of
        work.
        """
        if ledger.scope.aligned == "no":
            return _find_without_clocks(ledger, ranks or ())
        waits = {account: ns for account, ns in ledger.by_account().items() if account.kind == "straggler"}
        late_rank = culprit_of(ledger, ranks)
        cost_ns = waits_of_others_ns(ledger, late_rank)
        if not waits or not matters(ledger, cost_ns):
            return ()
        op_class, spread_ns, all_differ = _most_uneven_class(_class_times(ranks or ()))
        split_unevenness = _split_unevenness(ranks or ())
        explained = spread_ns >= _MIN_EXPLAINED_FRACTION * cost_ns
        evidence: list[str] = []
        if explained:
            label = words.OP_CLASSES[op_class].label
            also = ", and the other op classes by as large a part" if all_differ else ""
            evidence.append(f"{label} differs by {units.show_time(spread_ns)} per step between ranks{also}")
        if split_unevenness >= _MIN_SIZE_RATIO:
            evidence.append(f"the largest message of an all-to-all is {split_unevenness:.1f} times the mean")
        largest = largest_waits(ranks or ())
        subject = "The other ranks also" if late_rank is not None else "Ranks"
        return finding(
            self.rule,
            ledger,
            max(waits, key=lambda account: waits[account]),
            cost_ns,
            f"{subject} arrive late in turn and wait for each other, which costs",
            evidence="; ".join(evidence) or "no op class differs enough between ranks to explain it",
            remedy=_remedy(op_class if explained and not all_differ else "", split_unevenness, ranks or ()),
            # If one rank was the worst in most steps, it may be slower than the others all the same.
            confidence=confidence(
                1 - 2 * doubt_of_chance(ranks, len(ledger.scope.ranks) or 2) if ranks else 0,
                doubt_of_recurrence(largest.steps_with, largest.steps, largest.is_single) if largest else 0,
                _CLASS_DOUBT
                if (explained and not all_differ) or split_unevenness >= _MIN_SIZE_RATIO
                else _NO_CAUSE_DOUBT,
            ),
            largest=largest,
            change=Change(text="no-stragglers"),
            beyond=removal_of(late_rank) if late_rank is not None else None,
        )


def _find_without_clocks(ledger: Ledger, ranks: Sequence[Booked]) -> Sequence[Finding]:
    """Findings without aligned clocks, when waiting is not visible. Similar ranks have a long step in turn and all
    others wait, so that each step takes the longest time and not the mean."""
    class_times = _class_times([rank for rank in ranks if rank.collectives])
    lost_ns: dict[str, int] = {}
    for op_class in _LENGTH_DEPENDENT:
        step_times = list(class_times.get(op_class, {}).values())
        if len(step_times) >= _MIN_STEPS and max(step_times) * len(step_times) >= _MIN_TIME_RATIO * sum(step_times):
            lost_ns[op_class] = max(step_times) - sum(step_times) // len(step_times)
    op_class = max(lost_ns, key=lambda op_class: lost_ns[op_class], default="")
    if not op_class or not matters(ledger, lost_ns[op_class]):
        return ()
    step_times = class_times[op_class].values()
    return finding(
        Imbalance.rule,
        ledger,
        Account("compute", op_class),
        lost_ns[op_class],
        f"{words.OP_CLASSES[op_class].label} time varies from step to step and the other ranks wait, which costs",
        evidence=f"from {units.show_time(min(step_times))} to {units.show_time(max(step_times))} a step",
        remedy=_remedy(op_class, 0.0, ranks),
        # The other ranks' waiting is inferred, not measured.
        confidence=0.5,
    )


def _remedy(op_class: str, split_unevenness: float, ranks: Sequence[Booked]) -> str:
    """The remedy for an uneven op class, "" if no class explains the waiting; `split_unevenness`: largest
    message of an all-to-all over the mean one."""
    if split_unevenness >= _MIN_SIZE_RATIO and _has_class(ranks, "embedding") and not _has_class(ranks, "moe_route"):
        return "Balance the tables or experts whose data the all-to-all exchanges between the ranks."
    if split_unevenness >= _MIN_SIZE_RATIO or op_class == "moe_route":
        return "Balance the experts: use a capacity limit, a load-balancing loss or expert-choice routing."
    if op_class:
        return "Balance the batches: pack sequences to equal cost, or sort them by length across ranks."
    return "Check the devices' clocks, the hosts for noise (other jobs, collectors) and the batches for uneven sizes."


def _has_class(ranks: Sequence[Booked], op_class: str) -> bool:
    """Whether a rank has work of this op class (a key of words.OP_CLASSES)."""
    account = Account("compute", op_class)
    return any(account == pair_account for rank in ranks for pair_account, _ in rank.pairs)


def _class_times(ranks: Sequence[Booked]) -> _ClassTimes:
    """Time of each op class on each rank in each full step: the mean length of the step's intervals times the median
    number of a step, since an interval may lie on the other side of a bound that the ranks share."""
    class_times: _ClassTimes = defaultdict(dict)
    for rank in ranks:
        step_index = rank.step_of(rank.start)
        for op_class in words.OP_CLASSES:
            account = ("compute", op_class)
            is_class = rank.keys(lambda key, _, account=account: (key.kind, key.what) == account)
            rows = np.flatnonzero(is_class[rank.key] & (step_index >= 0))
            ns_by_step = np.bincount(
                step_index[rows], weights=rank.stop[rows] - rank.start[rows], minlength=len(rank.parts)
            )
            count_by_step = np.bincount(step_index[rows], weights=rank.begins[rows], minlength=len(rank.parts))
            typical_count = float(np.median(count_by_step[count_by_step > 0])) if count_by_step.any() else 0.0
            for part, ns, count in zip(rank.parts, ns_by_step.tolist(), count_by_step.tolist()):
                if count and not part.partial:
                    class_times[op_class][rank.events.rank, part.label] = int(ns / count * typical_count)
    return class_times


def _most_uneven_class(class_times: _ClassTimes) -> tuple[str, int, bool]:
    """(The op class whose time in a step differs most between ranks, ns by which its longest time exceeds the mean over
    ranks, averaged over steps, whether most other classes differ by as large a fraction); ("", 0, False) if no class
    differs."""
    mean_excess_ns: dict[str, int] = {}  # op class -> ns; without classes that hardly differ
    fraction: dict[str, float] = {}  # op class -> excess over its mean time
    for op_class, times in class_times.items():
        by_step: dict[str, list[int]] = defaultdict(list)
        for (_, step), ns in times.items():
            by_step[step].append(ns)
        excess_ns = sum(max(times_ns) - sum(times_ns) // len(times_ns) for times_ns in by_step.values())
        fraction[op_class] = excess_ns / max(1.0, sum(sum(times_ns) / len(times_ns) for times_ns in by_step.values()))
        if fraction[op_class] >= _MIN_EXCESS:
            mean_excess_ns[op_class] = excess_ns // len(by_step)
    op_class = max(mean_excess_ns, key=lambda op_class: mean_excess_ns[op_class], default="")
    if not op_class or mean_excess_ns[op_class] <= 0:
        return "", 0, False
    others = [value for other, value in fraction.items() if other != op_class]
    similar = sum(value >= _SIMILAR_EXCESS * fraction[op_class] for value in others)
    return op_class, mean_excess_ns[op_class], bool(others) and 2 * similar > len(others)


def _split_unevenness(ranks: Sequence[Booked]) -> float:
    """How unevenly all-to-alls split their data: the sum over the calls of a step of the largest buffer (bytes) that
    any rank and step has there, over the mean sum of a step. 1 if all are equal; 0 for fewer than two steps, and if
    the calls cannot be matched by their position, since the number of calls differs."""
    # For each step of each rank, the bytes of its all-to-alls in order of their start.
    sizes_by_step: list[list[int]] = []
    for rank in ranks:
        rows = [row for row, call in rank.collectives.items() if call.name == "all_to_all" and call.size > 0]
        step_index = rank.step_of(rank.start[rows]) if rows else np.empty(0, np.int64)
        for step in sorted(set(step_index.tolist()) - {-1}):
            calls = sorted(
                (row for row, at in zip(rows, step_index) if at == step), key=lambda row: int(rank.start[row])
            )
            sizes_by_step.append([rank.collectives[row].size for row in calls])
    if len(sizes_by_step) < 2 or len({len(calls) for calls in sizes_by_step}) != 1:
        return 0.0
    return sum(map(max, zip(*sizes_by_step))) * len(sizes_by_step) / sum(map(sum, sizes_by_step))
