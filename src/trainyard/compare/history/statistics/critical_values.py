"""Critical values of splits, for the interval of detection and again between neighbours, such that fewer than 1 in 100
series without a change show one.

Ranks have the same distribution under all exchangeable noise, so one table is valid for all of it; for autocorrelated
noise the statistic is divided by its inflation. `python -m validation.history_null` computes the table.
"""

from __future__ import annotations

import numpy as np

ALPHA = 0.01
"""Share of series without a change that show one."""
_CRITICAL_BY_POINTS = {12: 2.70, 14: 2.84, 16: 2.95, 20: 3.05, 30: 3.18, 50: 3.34, 100: 3.52, 200: 3.68, 500: 3.84,
                       1000: 4.00, 3000: 4.20, 10000: 4.40}  # fmt: skip
"""Number of points -> critical value, in normal deviations."""
MIN_POINTS = min(_CRITICAL_BY_POINTS)
"""Smallest number of points of a series that can be tested."""


def look_up_critical(n: int) -> float:
    """Critical value for a series of `n` points, at least MIN_POINTS; interpolated and extrapolated over log(n)."""
    sizes, strengths = np.log(list(_CRITICAL_BY_POINTS)), list(_CRITICAL_BY_POINTS.values())
    if n <= max(_CRITICAL_BY_POINTS):
        return float(np.interp(np.log(n), sizes, strengths))
    slope = (strengths[-1] - strengths[-2]) / (sizes[-1] - sizes[-2])
    return float(strengths[-1] + slope * (np.log(n) - sizes[-1]))
