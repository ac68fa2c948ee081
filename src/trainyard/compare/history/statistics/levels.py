"""Levels and the shift between two of them, with rank-based 95 % intervals."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

_Z_95_PERCENT = 1.96
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""
_MAX_POINTS_PER_SIDE = 200
"""Points on each side from which a shift is estimated."""


class Level(msgspec.Struct, frozen=True):
    """An estimate, with its 95 % interval from `low` to `high`."""

    value: float
    low: float
    high: float


def estimate_level(values: NDArray[np.float64], inflation: float = 1.0) -> Level:
    """The median of (n,) and the interval between two order statistics."""
    ordered = np.sort(values)
    n = ordered.size
    half_width = _Z_95_PERCENT * np.sqrt(n * inflation) / 2
    low, high = int(np.floor((n - 1) / 2 - half_width)), int(np.ceil((n - 1) / 2 + half_width))
    return Level(float(np.median(ordered)), float(ordered[max(0, low)]), float(ordered[min(n - 1, high)]))


def estimate_shift(before: NDArray[np.float64], after: NDArray[np.float64], inflation: float = 1.0) -> Level:
    """The median of all differences after - before (Hodges and Lehmann 1963), and the interval of shifts that the rank
    sum test does not reject (Moses)."""
    before, after = before[-_MAX_POINTS_PER_SIDE:], after[:_MAX_POINTS_PER_SIDE]
    m, n = before.size, after.size
    differences = np.sort((after[:, None] - before).ravel())
    half_width = _Z_95_PERCENT * np.sqrt(inflation * m * n * (m + n + 1) / 12)
    low, high = int(np.floor(m * n / 2 - half_width)), int(np.ceil(m * n / 2 + half_width)) - 1
    last = differences.size - 1
    return Level(
        float(np.median(differences)), float(differences[max(0, low)]), float(differences[min(last, max(0, high))])
    )
