"""The change points of a series: from the narrowest intervals with more than one level; each change is then moved and
tested again between its neighbours.

A split divides an interval of the series into two levels; its strength is the significance of their difference, in
normal deviations. Points are indices of the series (n,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.split_scan import BestSplits, find_best_splits


def find_change_points(
    values: NDArray[np.float64], splits: BestSplits, variance_inflation: float, critical: float
) -> list[int]:
    """First points of new levels, ascending: splits stronger than `critical`, narrowest interval first (Baranowski et
    al. 2019), then moved and tested again between their neighbours. `splits`: the best of each tested interval;
    `variance_inflation`: as in `estimate_variance_inflation`."""
    return _confirm_changes(
        values, _select_narrowest(splits, variance_inflation, critical), variance_inflation, critical
    )


def _select_narrowest(splits: BestSplits, variance_inflation: float, critical: float) -> list[int]:
    """Points of the splits stronger than `critical`, ascending: that of the narrowest interval, then those of intervals
    that do not contain a point already selected. `variance_inflation`: of the variance of a mean, from
    autocorrelation."""
    strength = splits.strengths(variance_inflation)
    # Rows of `splits`, the narrowest interval first, and the strongest of equally narrow ones.
    rows = np.flatnonzero(strength > critical)
    rows = rows[np.lexsort((-strength[rows], (splits.stop - splits.start)[rows]))]
    points: list[int] = []
    while rows.size:
        at = int(splits.at[rows[0]])
        points.append(at)
        rows = rows[(splits.start[rows] >= at) | (splits.stop[rows] <= at)]
    return sorted(points)


_MAX_ROUNDS = 8
"""Largest number of rounds in which changes are moved; they converge in two or three."""


def _confirm_changes(
    values: NDArray[np.float64], points: list[int], variance_inflation: float, critical: float
) -> list[int]:
    """Moves each change to the best split between its neighbours, and drops the weakest until all are stronger than
    `critical`. `points`: first points of new levels, which are changed. `variance_inflation`: as in
    `estimate_variance_inflation`."""
    # (start, stop) -> (point of the best split, its strength): a cache.
    split_of_interval: dict[tuple[int, int], tuple[int, float]] = {}

    def best_split(start: int, stop: int) -> tuple[int, float]:
        """(point, strength) of the best split of the interval from `start` to before `stop`."""
        if (start, stop) not in split_of_interval:
            split = find_best_splits(values, np.array([start]), stop - start)
            split_of_interval[start, stop] = int(split.at[0]), float(split.strengths(variance_inflation)[0])
        return split_of_interval[start, stop]

    for _ in range(_MAX_ROUNDS + len(points)):
        bounds = [0, *points, values.size]
        splits_between = [best_split(start, stop) for start, stop in zip(bounds, bounds[2:])]
        weak = [strength for _, strength in splits_between if strength <= critical]
        if weak:
            del points[[strength for _, strength in splits_between].index(min(weak))]
            continue
        positions = sorted({at for at, _ in splits_between})
        if positions == points:
            break
        points = positions
    return points
