"""Levels and the shift between two of them, with rank-based 95 % intervals."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

_Z_95_PERCENT = 1.96
"""Standard deviations on either side of the mean that hold 95 % of a normal distribution."""
_MAX_POINTS_PER_SIDE = 200
"""Points on each side, those nearest to the change, from which a shift is estimated."""
DEVIATION_PER_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


class Level(msgspec.Struct, frozen=True):
    """An estimate, with its 95 % interval from `low` to `high`."""

    value: float
    low: float
    high: float


def estimate_level(values: NDArray[np.float64], variance_inflation: float = 1.0) -> Level:
    """The median of `values` (n,), and as its 95 % interval two order statistics. `variance_inflation`: variance of a
    long mean of the values relative to that of independent values (`estimate_variance_inflation`)."""
    ordered = np.sort(values)
    count = ordered.size
    # The number of values below the true median is binomial, with the standard deviation sqrt(count) / 2.
    half_width = _Z_95_PERCENT * np.sqrt(count * variance_inflation) / 2
    low_index, high_index = int(np.floor((count - 1) / 2 - half_width)), int(np.ceil((count - 1) / 2 + half_width))
    return Level(
        float(np.median(ordered)), float(ordered[max(0, low_index)]), float(ordered[min(count - 1, high_index)])
    )


def estimate_shift(before: NDArray[np.float64], after: NDArray[np.float64], variance_inflation: float = 1.0) -> Level:
    """The shift of the level from `before` to `after`, arrays in the order of the series: the median of all differences
    after - before (Hodges and Lehmann 1963), and as its 95 % interval the shifts that the rank sum test does not reject
    (Moses). Uses the last `_MAX_POINTS_PER_SIDE` points of `before` and the first of `after`. `variance_inflation`: as
    in `estimate_level`."""
    before, after = before[-_MAX_POINTS_PER_SIDE:], after[:_MAX_POINTS_PER_SIDE]
    before_count, after_count = before.size, after.size
    differences = np.sort((after[:, None] - before).ravel())
    rank_sum_variance = variance_inflation * before_count * after_count * (before_count + after_count + 1) / 12
    half_width = _Z_95_PERCENT * np.sqrt(rank_sum_variance)
    # The interval is from one order statistic of the differences to another, symmetric to their middle.
    middle = before_count * after_count / 2
    low_index, high_index = int(np.floor(middle - half_width)), int(np.ceil(middle + half_width)) - 1
    last = differences.size - 1
    return Level(
        value=float(np.median(differences)),
        low=float(differences[max(0, low_index)]),
        high=float(differences[min(last, max(0, high_index))]),
    )
