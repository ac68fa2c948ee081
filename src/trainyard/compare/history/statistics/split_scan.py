"""The best split of every stretch of a growing series."""

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
    """One entry a stretch [start, stop): its best split is before point `at`, of `statistic` (split_statistics)."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    at: NDArray[np.int64]
    statistic: NDArray[np.float64]

    def strengths(self, inflation: float) -> NDArray[np.float64]:
        """As of a normal, noise being so much wider than independent."""
        return as_normal(np.abs(self.statistic) / np.sqrt(inflation), self.at - self.start, self.stop - self.at)

    def part(self, rows: slice) -> BestSplits:
        return BestSplits(self.start[rows], self.stop[rows], self.at[rows], self.statistic[rows])


class Scan:
    """Points come in by `extend`; a stretch of the grid is ranked once, when its last point is there. Of each length
    one more stretch ends at the last point, and there is the whole: these are ranked anew, some four values a point.
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
            # The stretch that ends at the last point comes last, and is no part of the grid.
            begun = np.append(starts(length, before, n), n - length)
            parts = np.array_split(begun, begun.size * length // _AT_ONCE + 1)
            found = joined([best_splits(self.values, part, length) for part in parts])
            self._ending.append(found.part(slice(-1, None)))
            if begun.size > 1:
                self._grid.append(found.part(slice(None, -1)))
        if n > 1:
            self._ending.append(best_splits(self.values, np.zeros(1, int), n))

    def splits(self) -> BestSplits:
        """Of every stretch."""
        if len(self._grid) > 1:
            self._grid = [joined(self._grid)]
        return joined([*self._grid, *self._ending])


def joined(parts: list[BestSplits]) -> BestSplits:
    """Of no parts, no stretches."""
    none = np.zeros(0, np.int64)
    return BestSplits(
        np.concatenate([none, *(part.start for part in parts)]),
        np.concatenate([none, *(part.stop for part in parts)]),
        np.concatenate([none, *(part.at for part in parts)]),
        np.concatenate([np.zeros(0), *(part.statistic for part in parts)]),
    )


def best_splits(values: NDArray[np.float64], begun: NDArray[np.int64], length: int) -> BestSplits:
    """Of the stretches of `length` that begin at `begun`."""
    statistics = split_statistics(values[begun[:, None] + np.arange(length)])
    at = strongest(statistics)
    return BestSplits(begun, begun + length, begun + at + 1, statistics[np.arange(begun.size), at])
