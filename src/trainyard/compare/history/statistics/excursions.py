"""Excursions: changes that reverse within a few points. They are too short for two significant steps, but not for a
comparison with all the points around them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import SHORTEST_SIDE, centre_ranks, transform_to_normal

MAX_EXCURSION = 15
"""Largest length of an excursion in points."""
_LEAST_VARIANCE = 1e-300
"""Lower limit of a variance, to avoid a division by 0."""
_WINDOWS_ALLOWANCE = 0.6
"""Added to the critical value of a split, as there are more windows than splits. With it, series without a change show
an excursion as rarely as a step (`python -m validation.history_noise`)."""


def find_excursions(values: NDArray[np.float64], variance_inflation: float, critical: float) -> list[tuple[int, int]]:
    """[start, stop) of the windows whose ranks differ from the rest of a single-level interval (n,), strongest first
    and without overlaps. `critical`: critical value of a split, in normal deviations; `variance_inflation`: as in
    `estimate_variance_inflation`."""
    n = values.size
    chosen: list[tuple[int, int]] = []
    if n < 4 * SHORTEST_SIDE:
        return chosen
    # The rank sum inside a window against its standard deviation, as for a split into its points and the rest.
    ranks = centre_ranks(values[None])[0]
    sums = np.concatenate([[0.0], ranks.cumsum()])
    variance = float(ranks @ ranks) / (n - 1)
    windows: list[tuple[float, int, int]] = []  # (strength, start, stop)
    for width in range(SHORTEST_SIDE, min(MAX_EXCURSION, n // 3) + 1):
        inside = sums[width:] - sums[:-width]
        spread = np.sqrt(max(variance, _LEAST_VARIANCE) * width * (n - width) / n * variance_inflation)
        sides = np.array([width]), np.array([n - width])
        strength = transform_to_normal(np.abs(inside) / spread, *sides)
        # Windows at the ends of the interval cannot be distinguished from steps.
        strength[:SHORTEST_SIDE] = strength[strength.size - SHORTEST_SIDE :] = 0
        windows += [
            (float(strength[at]), int(at), int(at) + width)
            for at in np.flatnonzero(strength > critical + _WINDOWS_ALLOWANCE)
        ]
    for _, start, stop in sorted(windows, reverse=True):
        if all(stop < other_start or start > other_stop for other_start, other_stop in chosen):
            chosen.append((start, stop))
    return chosen
