"""Is a stretch of a series of one level? Ranks alone are asked: the answer's error rate is the same for any noise.

The statistic of a split is Wilcoxon's, standardised: its distribution over exchangeable values is the same whatever
they are drawn from (Pettitt 1979).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORTEST_SIDE = 5
"""Points on either side of a split: fewer cannot be told from spikes."""


def centred_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row (m, n): mid-ranks less their mean."""
    m, n = values.shape
    rows = np.arange(m)[:, None]
    order = values.argsort(axis=1, kind="stable")
    ordered = values[rows, order]
    place = np.arange(n) - (n - 1) / 2
    same = ordered[:, 1:] == ordered[:, :-1]
    if same.any():
        place = _shared(same, place)
    ranks = np.empty((m, n))
    ranks[rows, order] = place
    return ranks


def _shared(same: NDArray[np.bool_], place: NDArray[np.float64]) -> NDArray[np.float64]:
    """(m, n): the mean place of each run of equal values; `same` (m, n - 1): as the one before."""
    edge = np.zeros((same.shape[0], 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, same]), place[0], place), axis=1)
    last = np.where(np.hstack([same, edge]), place[-1], place)
    return (first + np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]) / 2


class _Sides(NamedTuple):
    """Of the n - 1 splits of n points: the variance of a rank sum over that of a rank, and how short its tails are."""

    variance: NDArray[np.float64]
    short: NDArray[np.float64]


@lru_cache(maxsize=256)
def _sides(n: int) -> _Sides:
    left = np.arange(1, n)
    return _Sides(left * (n - left) / n, _short(left, n - left))


def split_statistics(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(m, n - 1): the standardised rank sum of each row's first k + 1 values; 0 within SHORTEST_SIDE of an end, and for
    rows of one value. Positive where the later values are larger."""
    ranks = centred_ranks(values)
    n = ranks.shape[1]
    spread = (ranks * ranks).sum(axis=1, keepdims=True) / (n - 1)
    found = -ranks.cumsum(axis=1)[:, :-1]
    found /= np.sqrt(np.where(spread > 0, spread, np.inf) * _sides(n).variance)
    found[:, : SHORTEST_SIDE - 1] = 0
    found[:, n - SHORTEST_SIDE :] = 0
    return found


def strongest(statistics: NDArray[np.float64]) -> NDArray[np.int64]:
    """(m,): the column of each row (m, n - 1) that a normal would reach least often."""
    return np.abs(_stretched(statistics, _sides(statistics.shape[1] + 1).short)).argmax(axis=1)


def as_normal(
    statistics: NDArray[np.float64], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Statistics of splits into `left` and `right` values with a normal's tails: Wilcoxon's are shorter, by its fourth
    cumulant (Fix and Hodges 1955)."""
    return _stretched(statistics, _short(left, right))


def _stretched(statistics: NDArray[np.float64], short: NDArray[np.float64]) -> NDArray[np.float64]:
    return statistics * (1 + short * (statistics * statistics - 3))


def _short(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
    product = left * right
    return 0.05 * (left * left + right * right + product + left + right) / (product * (left + right + 1.0))
