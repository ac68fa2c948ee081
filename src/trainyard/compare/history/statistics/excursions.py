"""What went away within a few points: too short for two steps to be told from chance, but not when held against all the
points around it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import SHORTEST_SIDE, as_normal, centred_ranks

LONGEST = 15
"""A change that is undone within so many points went away."""
_MORE = 0.6
"""By how much stronger than a split a window must be: there are more of them. As many series without a change show one
as show a step (`python -m validation.history_noise`)."""


def excursions(values: NDArray[np.float64], inflation: float, critical: float) -> list[tuple[int, int]]:
    """[start, stop) of windows of a part of one level (n,) whose ranks are not those of the rest, the strongest first
    and none of two that meet."""
    n = values.size
    found: list[tuple[int, int]] = []
    if n < 4 * SHORTEST_SIDE:
        return found
    ranks = centred_ranks(values[None])[0]
    sums = np.concatenate([[0.0], ranks.cumsum()])
    variance = float(ranks @ ranks) / (n - 1)
    windows: list[tuple[float, int, int]] = []
    for width in range(SHORTEST_SIDE, min(LONGEST, n // 3) + 1):
        inside = sums[width:] - sums[:-width]
        spread = np.sqrt(max(variance, 1e-300) * width * (n - width) / n * inflation)
        sides = np.array([width]), np.array([n - width])
        strength = as_normal(np.abs(inside) / spread, *sides)
        strength[:SHORTEST_SIDE] = strength[strength.size - SHORTEST_SIDE :] = 0
        windows += [
            (float(strength[at]), int(at), int(at) + width) for at in np.flatnonzero(strength > critical + _MORE)
        ]
    for _, start, stop in sorted(windows, reverse=True):
        if all(stop < other or start > end for other, end in found):
            found.append((start, stop))
    return found
