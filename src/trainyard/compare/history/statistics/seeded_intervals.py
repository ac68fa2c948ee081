"""The intervals of a series that are tested: seeded intervals (Kovács et al. 2023) on a grid that does not move as the
series grows, so that each is tested once, and the intervals that end at the newest point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_LENGTH = 16
"""Points of the shortest interval that is tested."""
_LENGTH_RATIO = 2**0.5
"""Length of an interval over that of the next shorter one."""


def list_lengths(n: int) -> list[int]:
    """Interval lengths up to n: MIN_LENGTH times powers of the square root of 2."""
    lengths, length = [], float(MIN_LENGTH)
    while round(length) <= n:
        lengths.append(round(length))
        length *= _LENGTH_RATIO
    return lengths


def list_starts(length: int, begin: int, n: int) -> NDArray[np.int64]:
    """Starts, ascending, of the grid intervals of `length` points that end after point `begin` and by point n, half a
    length apart."""
    step = length // 2
    # Number of the first grid interval that ends after `begin`: the division is rounded up.
    first = max(0, -(-(begin - length + 1) // step)) if begin else 0
    return np.arange(first * step, n - length + 1, step)
