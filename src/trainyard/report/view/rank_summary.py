"""The timeline of many ranks: a lane for each that shows which account owns its time, and the full lanes of a few.

Full lanes are those of the ranks that the others wait for, and of a typical rank of each group of similar ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainyard.ledger import Account
from trainyard.report.view.account_times import per_rank
from trainyard.report.view.rank_groups import group_ranks
from trainyard.report.view.view import Lane, RankGroups
from trainyard.trace.booking.summarise_rank import RankSummary, Stretches, summarise_rank
from trainyard.trace.measure import MAX_RANKS_IN_DETAIL
from trainyard.trace.measured_trace import MeasuredTrace

LEDGER_LABEL = "ledger"
_MOST_LATE = 3
"""Ranks that are drawn in full because the others wait for them."""
_DETAIL_SHARE = 0.5
"""Share of the slices of a page for the full lanes."""


class SummarisedRanks:
    """The summaries of many ranks. `groups`: of similar ranks; `in_detail`: indices of the ranks that are drawn in
    full; `windows`: (start, stop) of each rank's window in ns; `intervals`: number of intervals of work of all
    ranks."""

    def __init__(self, measured: MeasuredTrace) -> None:
        """Summarises ranks that were not summarised when they were booked."""
        self._summaries: Sequence[RankSummary] = measured.summaries or [summarise_rank(rank) for rank in measured.ranks]
        self.groups: RankGroups = group_ranks(per_rank(measured.by_rank), measured.mean, self._summaries)
        full = {*self.groups.latest[:_MOST_LATE], *(group.typical for group in self.groups.similar)}
        self.in_detail = [index for index, summary in enumerate(self._summaries) if summary.rank in full]
        self.windows = [
            (int(summary.stretches.bounds[0]), int(summary.stretches.bounds[-1])) for summary in self._summaries
        ]
        self.intervals = sum(summary.intervals for summary in self._summaries)

    def most_detail(self, max_slices: int) -> int:
        """The number of slices that the full lanes may have of the `max_slices` of a page."""
        return round(_DETAIL_SHARE * max_slices)

    def lanes(
        self,
        origins: Sequence[int],
        max_slices: int,
        name_number: Callable[[str], int],
        look_number: Callable[[Account], int],
    ) -> list[Lane]:
        """A lane for each rank, with at most `max_slices` slices in all, or one for each rank if there are more ranks.

        `origins`: time in ns at which the lane of each begins; `name_number`, `look_number`: return the numbers of the
        name and of the look of a slice, which lanes refer to.
        """
        stretches = [summary.stretches for summary in self._summaries]
        window_ns = max(stop - start for start, stop in self.windows)
        shortest_ns = 0
        while sum(len(own.account) for own in stretches) > max(max_slices, len(stretches)):
            shortest_ns = 2 * shortest_ns or max(1, window_ns // 256)
            stretches = [summary.stretches.merge_short(shortest_ns) for summary in self._summaries]
        return [
            _lane(summary.rank, own, origin, name_number, look_number)
            for summary, own, origin in zip(self._summaries, stretches, origins, strict=True)
        ]


def summarise_many(measured: MeasuredTrace) -> SummarisedRanks | None:
    """The summaries of the ranks if there are many, None for a few, all of which are drawn in full."""
    return SummarisedRanks(measured) if len(measured.ranks) > MAX_RANKS_IN_DETAIL else None


def _lane(
    rank: int,
    stretches: Stretches,
    origin: int,
    name_number: Callable[[str], int],
    look_number: Callable[[Account], int],
) -> Lane:
    """The lane of one rank, without gaps; the arguments are those of `SummarisedRanks.lanes`."""
    numbers = stretches.account.tolist()
    name = {number: name_number(stretches.accounts[number].label) for number in set(numbers)}
    look = {number: look_number(stretches.accounts[number]) for number in set(numbers)}
    return Lane(
        rank=rank,
        label=LEDGER_LABEL,
        kind="ledger",
        starts=(stretches.bounds[:-1] - origin).tolist(),
        lengths=(stretches.bounds[1:] - stretches.bounds[:-1]).tolist(),
        name=[name[number] for number in numbers],
        look=[look[number] for number in numbers],
    )
