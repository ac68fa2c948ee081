"""The best split of every tested interval of a growing series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import as_normal, split_statistics, strongest
from trainyard.compare.history.statistics.seeded_intervals import lengths, starts

_AT_ONCE = 1 << 18
"""Values ranked at once."""


class BestSplits(NamedTuple):
    """One entry per interval [start, stop): its best split is before point `at`, with `statistic` (see
    split_statistics)."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    at: NDArray[np.int64]
    statistic: NDArray[np.float64]

    def strengths(self, inflation: float) -> NDArray[np.float64]:
        """Strength of each split in normal deviations, for noise with the given variance inflation."""
        return as_normal(np.abs(self.statistic) / np.sqrt(inflation), self.at - self.start, self.stop - self.at)

    def part(self, rows: slice) -> BestSplits:
        return BestSplits(self.start[rows], self.stop[rows], self.at[rows], self.statistic[rows])


class Scan:
    """Points are added with `extend`. An interval of the grid is ranked once, when its last point arrives. The interval
    of each length that ends at the last point, and the whole series, are ranked again each time: about four values per
    point.
    """

    def __init__(self) -> None:
        self.values = np.empty(0)
        self._grid: list[BestSplits] = []
        self._ending: list[BestSplits] = []

    def extend(self, values: Iterable[float]) -> None:
        before = self.values.size
        self.values = np.concatenate([self.values, np.asarray(list(values), float)])
        n = self.values.size
        self._ending = []
        for length in lengths(n):
            # The interval that ends at the last point comes last and is not part of the grid.
            begins = np.append(starts(length, before, n), n - length)
            parts = np.array_split(begins, begins.size * length // _AT_ONCE + 1)
            splits = joined([best_splits(self.values, part, length) for part in parts])
            self._ending.append(splits.part(slice(-1, None)))
            if begins.size > 1:
                self._grid.append(splits.part(slice(None, -1)))
        if n > 1:
            self._ending.append(best_splits(self.values, np.zeros(1, int), n))

    def splits(self) -> BestSplits:
        """The best splits of all tested intervals."""
        if len(self._grid) > 1:
            self._grid = [joined(self._grid)]
        return joined([*self._grid, *self._ending])


def joined(parts: list[BestSplits]) -> BestSplits:
    """Concatenate; empty for an empty list."""
    none = np.zeros(0, np.int64)
    return BestSplits(
        np.concatenate([none, *(part.start for part in parts)]),
        np.concatenate([none, *(part.stop for part in parts)]),
        np.concatenate([none, *(part.at for part in parts)]),
        np.concatenate([np.zeros(0), *(part.statistic for part in parts)]),
    )


def best_splits(values: NDArray[np.float64], start: NDArray[np.int64], length: int) -> BestSplits:
    """The best splits of the intervals of `length` that begin at `start`."""
    statistics = split_statistics(values[start[:, None] + np.arange(length)])
    at = strongest(statistics)
    return BestSplits(start, start + length, start + at + 1, statistics[np.arange(start.size), at])
