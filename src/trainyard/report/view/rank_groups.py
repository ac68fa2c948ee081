"""Groups of ranks whose steps are similar, ranks by host and by pipeline stage, and the order in which ranks are late.

A page of many ranks draws a row for each group, and the rows of its ranks on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainyard import units
from trainyard.detect.communication.straggler import late_rank
from trainyard.events import I64
from trainyard.ledger import Account, Ledger
from trainyard.report.view.account_times import account_times
from trainyard.report.view.view import RankGroup, RankGroups
from trainyard.trace.booking.summarise_rank import RankSummary

_MOST_GROUPS = 12
"""Maximum number of groups of similar ranks."""
_TOLERANCE = 0.02
"""Fraction of the step by which the accounts of similar ranks differ at most; widened if there are too many groups."""
_WIDER = 1.5


def group_ranks(ranks: Mapping[int, Ledger], mean: Ledger, summaries: Sequence[RankSummary] = ()) -> RankGroups:
    """The groups of many ranks. `ranks`: rank -> its mean ledger; `mean`: over all ranks, with the ns for which the
    others wait for each; `summaries`: of each rank, empty if its host and stage are unknown."""
    times = account_times(ranks, mean)
    numbers, accounts, ns = times.ranks, times.accounts, times.ns.T
    by_host: dict[str, list[int]] = {}
    by_stage: dict[int, list[int]] = {}
    for summary in summaries:
        by_host.setdefault(summary.host, []).append(summary.rank)
        by_stage.setdefault(summary.stage, []).append(summary.rank)
    return RankGroups(
        similar=_similar(numbers, ns, accounts, mean),
        hosts=_named({host: own for host, own in by_host.items() if host}, numbers, ns),
        stages=_named({f"stage {stage}": by_stage[stage] for stage in sorted(by_stage) if stage >= 0}, numbers, ns),
        latest=tuple(sorted(mean.late, key=lambda rank: (-mean.late[rank], rank))),
    )


def _named(members: Mapping[str, Sequence[int]], numbers: Sequence[int], ns: I64) -> tuple[RankGroup, ...]:
    """A group for each name; none unless there are several. `numbers`, `ns`: as in `_similar`."""
    if len(members) < 2:
        return ()
    position = {rank: index for index, rank in enumerate(numbers)}
    groups: list[RankGroup] = []
    for name, own in members.items():
        positions = np.array([position[rank] for rank in own if rank in position])
        if len(positions):
            groups.append(_group(name, positions, numbers, ns))
    return tuple(groups)


def _similar(numbers: Sequence[int], ns: I64, accounts: Sequence[Account], mean: Ledger) -> tuple[RankGroup, ...]:
    """Groups of ranks that differ in no account by more than a tolerance: first that of the rank that arrives last,
    then those that differ most from the median rank. `numbers`: of the ranks; `ns`[ranks, accounts]: of their steps."""
    median = np.median(ns, axis=0)
    tolerance_ns = _TOLERANCE * mean.wall_ns
    group_of_rank = _cluster(ns, median, tolerance_ns)
    while group_of_rank.max(initial=0) >= _MOST_GROUPS:
        tolerance_ns *= _WIDER
        group_of_rank = _cluster(ns, median, tolerance_ns)
    late = late_rank(mean)
    groups: list[tuple[bool, float, RankGroup]] = []
    for number in range(int(group_of_rank.max(initial=-1)) + 1):
        positions = np.flatnonzero(group_of_rank == number)
        deviation = ns[positions].mean(axis=0) - median
        largest = int(np.abs(deviation).argmax())
        label = "typical"
        if abs(deviation[largest]) > tolerance_ns / 2:
            sign = "+" if deviation[largest] > 0 else "\N{MINUS SIGN}"
            label = f"{sign}{units.show_time(abs(round(deviation[largest])))} {accounts[largest].label}"
        group = _group(label, positions, numbers, ns)
        groups.append((late not in group.ranks, -abs(deviation[largest]), group))
    return tuple(group for *_, group in sorted(groups, key=lambda item: item[:2]))


def _cluster(ns: I64, median: np.ndarray, tolerance_ns: float) -> I64:
    """The number of the group of each rank, from 0. Ranks are visited from the most typical one on; each joins the
    nearest group whose first rank differs by at most `tolerance_ns` in every account, or opens a group.

    Stops opening groups once there are more than `_MOST_GROUPS`.
    """
    groups = np.zeros(len(ns), np.int64)
    first_of_group: list[int] = []
    for rank in np.argsort(np.abs(ns - median).max(axis=1), kind="stable").tolist():
        differences = np.abs(ns[first_of_group] - ns[rank]).max(axis=1) if first_of_group else np.empty(0)
        nearest = int(differences.argmin()) if first_of_group else -1
        if nearest < 0 or (differences[nearest] > tolerance_ns and len(first_of_group) <= _MOST_GROUPS):
            nearest = len(first_of_group)
            first_of_group.append(rank)
        groups[rank] = nearest
    return groups


def _group(label: str, positions: I64, numbers: Sequence[int], ns: I64) -> RankGroup:
    """A group of the ranks at `positions` of `numbers`; its typical rank is the one that is nearest to their mean."""
    own = ns[positions]
    typical = int(np.abs(own - own.mean(axis=0)).sum(axis=1).argmin())
    return RankGroup(
        label=label,
        ranks=tuple(numbers[position] for position in positions.tolist()),
        typical=numbers[int(positions[typical])],
    )
