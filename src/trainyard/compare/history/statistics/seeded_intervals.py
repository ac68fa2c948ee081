"""Which stretches of a series are looked at: seeded intervals (Kovács et al. 2023) on a grid that stays as the series
grows, so that what was found in one is found once; and those that end at the newest point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHORTEST = 16
_GROWTH = 2**0.5


def lengths(n: int) -> list[int]:
    """Lengths up to n, from SHORTEST up by a factor of the root of two."""
    found, length = [], float(SHORTEST)
    while round(length) <= n:
        found.append(round(length))
        length *= _GROWTH
    return found


def starts(length: int, begin: int, n: int) -> NDArray[np.int64]:
    """Grid starts of stretches of `length` that end after point `begin` and by point n: half a length apart."""
    step = length // 2
    first = max(0, -(-(begin - length + 1) // step)) if begin else 0
    return np.arange(first * step, n - length + 1, step)
