"""Inflation of a mean's variance by autocorrelation.

The noise of a series is modelled as AR(1): each value depends on the one before, with the coefficient r. The variance
of a long mean is then (1 + r) / (1 - r) times that of independent values.
"""

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
    ranks, times = centre_ranks(values[None])[0], np.arange(values.size) - (values.size - 1) / 2
    norm = np.sqrt((ranks**2).sum() * (times**2).sum())
    return bool(norm > 0 and abs((ranks * times).sum()) > _MIN_TREND_CORRELATION * norm)


def estimate_autocorrelation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """AR(1) coefficient of each row (m, n), at least 0, estimated from rank differences at lags 2 and 1 (after Chakar
    et al. 2017), so that steps have little influence. In a series that consists mostly of steps they would, so
    the result is the smaller of two estimates: from all differences, and without the largest ones."""
    # The mean squared differences of AR(1) noise at lags 2 and 1 have the ratio (1 - r^2) / (1 - r) = 1 + r.
    ranks = centre_ranks(values)
    lag_1, lag_2 = (ranks[:, 1:] - ranks[:, :-1]) ** 2, (ranks[:, 2:] - ranks[:, :-2]) ** 2
    left_out = 2 * max(1, values.shape[1] // _POINTS_PER_STEP)  # number of largest differences
    from_all = _divide_trimmed_means(lag_2, lag_1, left_out=0)
    from_most = _divide_trimmed_means(lag_2, lag_1, left_out=left_out)
    return np.clip(np.minimum(from_all, from_most) - 1, 0, _MAX_CORRELATION)


def _divide_trimmed_means(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], left_out: int
) -> NDArray[np.float64]:
    """Ratio (m,) of the row means of `numerators` (m, n) and `denominators` (m, n'), each without the `left_out`
    largest values of the row; 0 if the second mean is 0."""
    numerator_means, denominator_means = (
        np.partition(squares, squares.shape[1] - left_out - 1, axis=1)[:, : squares.shape[1] - left_out].mean(axis=1)
        for squares in (numerators, denominators)
    )
    return numerator_means / np.where(denominator_means > 0, denominator_means, np.inf)


def estimate_variance_inflation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of a long mean relative to that of independent values, due to autocorrelation, for each row (m, n); at
    least 1."""
    correlation = estimate_autocorrelation(values)
    return (1 + correlation) / (1 - correlation)
