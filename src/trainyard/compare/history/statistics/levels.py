"""Levels and the shift between two of them, with rank-based 95 % intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SURE = 1.96
_NEAREST = 200
"""Points on each side from which a shift is estimated."""


class Level(NamedTuple):
    value: float
    low: float
    high: float


def level(values: NDArray[np.float64], inflation: float = 1.0) -> Level:
    """The median of (n,) and the interval between two order statistics."""
    ordered = np.sort(values)
    n = ordered.size
    half = _SURE * np.sqrt(n * inflation) / 2
    low, high = int(np.floor((n - 1) / 2 - half)), int(np.ceil((n - 1) / 2 + half))
    return Level(float(np.median(ordered)), float(ordered[max(0, low)]), float(ordered[min(n - 1, high)]))


def shift(before: NDArray[np.float64], after: NDArray[np.float64], inflation: float = 1.0) -> Level:
    """The median of all differences after - before (Hodges and Lehmann 1963), and the interval of shifts that the rank
    sum test does not reject (Moses)."""
    before, after = before[-_NEAREST:], after[:_NEAREST]
    m, n = before.size, after.size
    differences = np.sort((after[:, None] - before).ravel())
    half = _SURE * np.sqrt(inflation * m * n * (m + n + 1) / 12)
    low, high = int(np.floor(m * n / 2 - half)), int(np.ceil(m * n / 2 + half)) - 1
    last = differences.size - 1
    return Level(
        float(np.median(differences)), float(differences[max(0, low)]), float(differences[min(last, max(0, high))])
    )
