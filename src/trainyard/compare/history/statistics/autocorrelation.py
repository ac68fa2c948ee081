"""Inflation of a mean's variance by autocorrelation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import centre_ranks

_MAX_CORRELATION = 0.98
"""Upper limit of the estimated AR(1) coefficient: the inflation is infinite at 1."""
_MIN_TREND_CORRELATION, _MIN_TREND_POINTS = 0.99, 30
"""Rank correlation with time, and number of points, from which a series is a steady trend."""
_POINTS_PER_STEP = 20
"""Points per possible step. A step makes one large difference at lag 1 and two at lag 2; these are left out."""


def is_steady_trend(values: NDArray[np.float64]) -> bool:
    """Whether a series (n,) moves in one direction more steadily than a random walk, such as a slow leak. Its
    differences look like strongly autocorrelated noise, so the split test would miss it. Uses Spearman's rank
    correlation with time; 1 in 1,000 random walks of 30 points exceeds `_MIN_TREND_CORRELATION`,
    fewer of longer ones."""
    if values.size < _MIN_TREND_POINTS:
        return False
    ranks, numbers = centre_ranks(values[None])[0], np.arange(values.size) - (values.size - 1) / 2
    spread = np.sqrt((ranks**2).sum() * (numbers**2).sum())
    return bool(spread > 0 and abs((ranks * numbers).sum()) > _MIN_TREND_CORRELATION * spread)


def estimate_autocorrelation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """AR(1) coefficient of each row (m, n), at least 0, estimated from rank differences at lags 2 and 1 (after Chakar
    et al. 2017), so that steps have little influence. In a series that consists mostly of steps they would, so
    the result is the smaller of two estimates: from all differences, and without the largest ones."""
    ranks = centre_ranks(values)
    once, twice = (ranks[:, 1:] - ranks[:, :-1]) ** 2, (ranks[:, 2:] - ranks[:, :-2]) ** 2
    out = 2 * max(1, values.shape[1] // _POINTS_PER_STEP)
    of_all, of_most = _divide_trimmed_means(twice, once, 0), _divide_trimmed_means(twice, once, out)
    return np.clip(np.minimum(of_all, of_most) - 1, 0, _MAX_CORRELATION)


def _divide_trimmed_means(twice: NDArray[np.float64], once: NDArray[np.float64], out: int) -> NDArray[np.float64]:
    """Ratio (m,) of the row means of two arrays without their `out` largest values; 0 if the second is 0."""
    numerator, denominator = (
        np.partition(squares, squares.shape[1] - out - 1, axis=1)[:, : squares.shape[1] - out].mean(axis=1)
        for squares in (twice, once)
    )
    return numerator / np.where(denominator > 0, denominator, np.inf)


def estimate_inflation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of a long mean relative to that of independent values, for each row (m, n); at least 1."""
    correlation = estimate_autocorrelation(values)
    return (1 + correlation) / (1 - correlation)
