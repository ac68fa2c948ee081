"""How much wider than independent noise a series wanders: the inflation of a mean's variance by autocorrelation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.statistics.rank_statistics import centred_ranks

_MOST = 0.98
_STEADY, _FEWEST = 0.99, 30
_STEPS = 20
"""Of so many points one may be a step: it makes one large difference over one point, and two over two."""


def climbs(values: NDArray[np.float64]) -> bool:
    """Whether a series (n,) goes one way so steadily that not even a random walk would: a slow leak, whose differences
    are as alike as those of noise with a long memory, for which it would pass. By Spearman's rank correlation with the
    points' numbers; one random walk of 30 points in 1,000 has more than `_STEADY`, fewer of longer ones."""
    if values.size < _FEWEST:
        return False
    ranks, numbers = centred_ranks(values[None])[0], np.arange(values.size) - (values.size - 1) / 2
    spread = np.sqrt((ranks**2).sum() * (numbers**2).sum())
    return bool(spread > 0 and abs((ranks * numbers).sum()) > _STEADY * spread)


def autocorrelation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row (m, n), as of an autoregression of order 1, none taken as 0: from differences of ranks over two
    points and over one (after Chakar et al. 2017), so that steps hardly pass for it. Where steps are all there is they
    would: the least is taken of what all differences say and of what they say without the largest."""
    ranks = centred_ranks(values)
    once, twice = (ranks[:, 1:] - ranks[:, :-1]) ** 2, (ranks[:, 2:] - ranks[:, :-2]) ** 2
    out = 2 * max(1, values.shape[1] // _STEPS)
    of_all, of_most = _ratio(twice, once, 0), _ratio(twice, once, out)
    return np.clip(np.minimum(of_all, of_most) - 1, 0, _MOST)


def _ratio(twice: NDArray[np.float64], once: NDArray[np.float64], out: int) -> NDArray[np.float64]:
    """(m,): of the means of two arrays' rows without their `out` largest; 0 where the second is 0."""
    over, under = (
        np.partition(squares, squares.shape[1] - out - 1, axis=1)[:, : squares.shape[1] - out].mean(axis=1)
        for squares in (twice, once)
    )
    return over / np.where(under > 0, under, np.inf)


def inflation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of a long mean over what it would be of independent values, each row (m, n); 1 or more."""
    found = autocorrelation(values)
    return (1 + found) / (1 - found)
