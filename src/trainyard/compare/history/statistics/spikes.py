"""Points that stand apart from the levels around them: told and never judged, as noise of long tails makes them too."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_FAR = 6.0
_LONGEST = 4
"""Points in a row: more are an excursion, which ranks can tell."""
_MOST = 0.03
"""More of the points than this are no spikes but the noise's own shape."""


def spikes(values: NDArray[np.float64], edges: list[int]) -> list[tuple[int, int]]:
    """[start, stop) of each, by the distance from the middle of the part between two `edges` (0 and n among them)."""
    away = np.concatenate([_distance(values[a:b]) for a, b in pairwise(edges)])
    far = np.abs(away) > _FAR
    if not far.any() or far.mean() > max(_MOST, 1.0 / values.size):
        return []
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], far, [0]])))
    return [(int(a), int(b)) for a, b in zip(bounds[::2], bounds[1::2]) if b - a <= _LONGEST]


def _distance(part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each value from the median, in deviations; a line is taken out first, so that a drift is no spike."""
    time = np.arange(part.size) - (part.size - 1) / 2
    half = part.size // 2
    slope = np.median(part[-half:]) - np.median(part[:half]) if half else 0.0
    rest = part - slope * time / max(1, part.size - half)
    rest = rest - np.median(rest)
    spread = 1.4826 * np.median(np.abs(rest))
    return rest / spread if spread else np.zeros(part.size)
