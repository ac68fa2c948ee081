"""Spikes: outliers from the surrounding level. They are reported but not judged, as heavy-tailed noise has them too."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.levels import DEVIATION_PER_MAD

_MIN_DISTANCE = 6.0
"""Distance of an outlier from the level, in standard deviations."""
_MAX_SPIKE = 4
"""Largest number of consecutive points; longer ones are excursions, which the rank test detects."""
_MAX_OUTLIER_SHARE = 0.03
"""Largest fraction of outliers; more are due to the distribution of the noise."""


def find_spikes(values: NDArray[np.float64], edges: list[int]) -> list[tuple[int, int]]:
    """[start, stop) of each spike, by the distance from the median between two `edges` (including 0 and n)."""
    distances = np.concatenate([_standardise(values[a:b]) for a, b in pairwise(edges)])
    is_outlier = np.abs(distances) > _MIN_DISTANCE
    if not is_outlier.any() or is_outlier.mean() > max(_MAX_OUTLIER_SHARE, 1.0 / values.size):
        return []
    # Alternately the first point of a run of outliers and the first point after it.
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], is_outlier, [0]])))
    return [(int(a), int(b)) for a, b in zip(bounds[::2], bounds[1::2]) if b - a <= _MAX_SPIKE]


def _standardise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance (n,) of each of `values` from their median, in standard deviations (from the MAD), after subtracting a
    linear trend, so that a drift does not count as spikes."""
    time = np.arange(values.size) - (values.size - 1) / 2
    # Robust trend: the difference of the medians of the two halves, over the distance of their centres.
    half_size = values.size // 2
    rise = np.median(values[-half_size:]) - np.median(values[:half_size]) if half_size else 0.0
    residuals = values - rise * time / max(1, values.size - half_size)
    residuals = residuals - np.median(residuals)
    deviation = DEVIATION_PER_MAD * np.median(np.abs(residuals))
    return residuals / deviation if deviation else np.zeros(values.size)
