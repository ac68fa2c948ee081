"""The best split of every tested interval of a growing series.

A split divides an interval into two levels; the best one has the strongest rank statistic. The intervals are those of a
fixed grid (`seeded_intervals.py`), which are tested once, and those that end at the newest point.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import (
    compute_split_statistics,
    find_strongest,
    transform_to_normal,
)
from trainyard.compare.history.statistics.seeded_intervals import list_lengths, list_starts

_BATCH_VALUES = 1 << 18
"""Values ranked at once."""


class BestSplits(NamedTuple):
    """One entry per interval [start, stop): its best split is before point `at`, with `statistic`, as computed by
    `compute_split_statistics`."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    at: NDArray[np.int64]
    statistic: NDArray[np.float64]

    def strengths(self, variance_inflation: float) -> NDArray[np.float64]:
        """Strength of each split in normal deviations, for noise with the given variance inflation."""
        return transform_to_normal(
            np.abs(self.statistic) / np.sqrt(variance_inflation), self.at - self.start, self.stop - self.at
        )

    def part(self, rows: slice) -> BestSplits:
        return BestSplits(
            start=self.start[rows], stop=self.stop[rows], at=self.at[rows], statistic=self.statistic[rows]
        )


class SplitScan:
    """Points are added with `extend`. An interval of the grid is ranked once, when its last point arrives. The interval
    of each length that ends at the last point, and the whole series, are ranked again each time: about four values per
    point.
    """

    def __init__(self) -> None:
        self.values = np.empty(0)
        self._grid: list[BestSplits] = []
        self._ending: list[BestSplits] = []

    def extend(self, values: Iterable[float]) -> None:
        """Append `values`; find the best split of each new interval of the grid, and of the intervals that end at the
        last value."""
        before = self.values.size
        self.values = np.concatenate([self.values, np.asarray(list(values), float)])
        n = self.values.size
        self._ending = []
        for length in list_lengths(n):
            # The interval that ends at the last point comes last and is not part of the grid.
            begins = np.append(list_starts(length, before, n), n - length)
            parts = np.array_split(begins, begins.size * length // _BATCH_VALUES + 1)
            splits = concatenate_splits([find_best_splits(self.values, part, length) for part in parts])
            self._ending.append(splits.part(slice(-1, None)))
            if begins.size > 1:
                self._grid.append(splits.part(slice(None, -1)))
        if n > 1:
            self._ending.append(find_best_splits(self.values, np.zeros(1, int), n))

    def splits(self) -> BestSplits:
        """The best splits of all tested intervals."""
        if len(self._grid) > 1:
            self._grid = [concatenate_splits(self._grid)]
        return concatenate_splits([*self._grid, *self._ending])


def concatenate_splits(parts: list[BestSplits]) -> BestSplits:
    """Concatenate; empty for an empty list. `parts`: in the order of their intervals."""
    none = np.zeros(0, np.int64)
    return BestSplits(
        start=np.concatenate([none, *(part.start for part in parts)]),
        stop=np.concatenate([none, *(part.stop for part in parts)]),
        at=np.concatenate([none, *(part.at for part in parts)]),
        statistic=np.concatenate([np.zeros(0), *(part.statistic for part in parts)]),
    )


def find_best_splits(values: NDArray[np.float64], start: NDArray[np.int64], length: int) -> BestSplits:
    """The best split of each of the intervals of `length` points that begin at the points `start` (m,)."""
    statistics = compute_split_statistics(values[start[:, None] + np.arange(length)])
    at = find_strongest(statistics)
    return BestSplits(
        start=start, stop=start + length, at=start + at + 1, statistic=statistics[np.arange(start.size), at]
    )
