"""The distribution of the ratio of an error to the largest of n errors of the same distribution.

An error of d degrees of freedom is the norm of d independent normal numbers, so that its square is chi-squared. With
density f and distribution function F of chi-squared, P(ratio > c) is the integral of f(x) F(x / c^2)^n over x, which is
computed on a grid of log x. For d = 1 the tail falls with c^-n; for many degrees of freedom errors are almost equal.
"""

from __future__ import annotations

from functools import lru_cache
from math import lgamma, log

import numpy as np
import numpy.typing as npt

_LOWEST, _POINTS = -90.0, 12000
"""Smallest log x of the grid, and its points."""


@lru_cache(maxsize=512)
def ratio_quantile(degrees: int, errors: int, probability: float) -> float:
    """The ratio that an error of `degrees` degrees of freedom exceeds with `probability`, relative to the largest of
    `errors` others; at least 1."""
    grid, log_cdf = _chi_squared(degrees)
    low, high = 0.0, 40.0  # of log c^2
    if _tail(grid, log_cdf, errors, low) <= probability:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(grid, log_cdf, errors, middle) > probability else (low, middle)
    return float(np.exp(high / 2))


def _tail(grid: npt.NDArray[np.float64], log_cdf: npt.NDArray[np.float64], errors: int, log_square: float) -> float:
    """P(the square of the ratio > exp(log_square)): each cell of the grid has the probability mass of its ends."""
    mass = np.diff(np.exp(log_cdf))
    others = np.exp(errors * np.interp(grid - log_square, grid, log_cdf))
    return float(np.sum(mass * (others[1:] + others[:-1]) / 2))


@lru_cache(maxsize=64)
def _chi_squared(degrees: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(log x, log F(x)) of chi-squared with `degrees` degrees of freedom, on a grid to where F is 1."""
    grid = np.linspace(_LOWEST, log(degrees + 40 * degrees**0.5 + 200), _POINTS)
    half = degrees / 2
    log_density = half * grid - np.exp(grid) / 2 - half * log(2) - lgamma(half)  # of log x
    first = half * grid[0] - half * log(2) - lgamma(half + 1)
    density = np.exp(log_density)
    steps = (density[1:] + density[:-1]) / 2 * np.diff(grid)
    cdf = np.exp(first) + np.concatenate(([0.0], np.cumsum(steps)))
    log_cdf = np.log(np.maximum(cdf / cdf[-1], 1e-300))
    small = cdf < 1e-280
    log_cdf[small] = half * grid[small] - half * log(2) - lgamma(half + 1)
    return grid, log_cdf
