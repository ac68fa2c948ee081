"""Rank statistics of splits, to test whether an interval of a series has a single level.

The statistic of a split is Wilcoxon's, standardised. Its distribution over exchangeable values does not depend on the
distribution of the noise, so neither does the error rate (Pettitt 1979).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SHORTEST_SIDE = 5
"""Smallest number of points on each side of a split: fewer cannot be distinguished from spikes."""


def centre_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mid-ranks of each row (m, n), minus their mean."""
    m, n = values.shape
    rows = np.arange(m)[:, None]
    order = values.argsort(axis=1, kind="stable")  # (m, n): column of each row's k-th smallest value
    ordered = values[rows, order]
    position = np.arange(n) - (n - 1) / 2
    equals_previous = ordered[:, 1:] == ordered[:, :-1]
    if equals_previous.any():
        position = _average_ties(equals_previous, position)
    ranks = np.empty((m, n))
    ranks[rows, order] = position
    return ranks


def _average_ties(equals_previous: NDArray[np.bool_], position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean position (m, n) of each run of equal values in a row. `position` (n,): of the sorted values;
    `equals_previous` (m, n - 1): whether a sorted value equals its predecessor."""
    # Position of the first and of the last value of the run of each value: the nearest start before it, the nearest end
    # after it.
    edge = np.zeros((equals_previous.shape[0], 1), bool)
    first = np.maximum.accumulate(np.where(np.hstack([edge, equals_previous]), position[0], position), axis=1)
    last = np.where(np.hstack([equals_previous, edge]), position[-1], position)
    return (first + np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]) / 2


class _SplitConstants(NamedTuple):
    """For the n - 1 splits of n points: `variance` of the rank sum relative to that of a rank; `short`: coefficient by
    which its tails are shorter than a normal's."""

    variance: NDArray[np.float64]
    short: NDArray[np.float64]


@lru_cache(maxsize=256)
def _split_constants(n: int) -> _SplitConstants:
    left_count = np.arange(1, n)
    return _SplitConstants(left_count * (n - left_count) / n, _tail_coefficient(left_count, n - left_count))


def compute_split_statistics(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standardised rank sums (m, n - 1) of each row's first k + 1 values, positive if the later values are larger; 0
    within SHORTEST_SIDE of an end and for constant rows."""
    ranks = centre_ranks(values)
    n = ranks.shape[1]
    # The sum of k centred ranks has the variance spread x k (n - k) / n.
    spread = (ranks * ranks).sum(axis=1, keepdims=True) / (n - 1)
    statistics = -ranks.cumsum(axis=1)[:, :-1]
    statistics /= np.sqrt(np.where(spread > 0, spread, np.inf) * _split_constants(n).variance)
    statistics[:, : SHORTEST_SIDE - 1] = 0
    statistics[:, n - SHORTEST_SIDE :] = 0
    return statistics


def find_strongest(statistics: NDArray[np.float64]) -> NDArray[np.int64]:
    """Column (m,) of the most significant split of each row (m, n - 1)."""
    return np.abs(_stretch_tails(statistics, _split_constants(statistics.shape[1] + 1).short)).argmax(axis=1)


def transform_to_normal(
    statistics: NDArray[np.float64], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Statistics of splits into `left` and `right` values (numbers of points), transformed to the normal distribution:
    the tails of Wilcoxon's are shorter, by its fourth cumulant (Fix and Hodges 1955)."""
    return _stretch_tails(statistics, _tail_coefficient(left, right))


def _stretch_tails(statistics: NDArray[np.float64], tail_coefficient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normal deviates from statistics with shorter tails, by the first term of the Cornish-Fisher expansion."""
    return statistics * (1 + tail_coefficient * (statistics * statistics - 3))


def _tail_coefficient(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
    """Coefficient of `_stretch_tails` for the rank sum of `left` and `right` values: -1/24 of its excess kurtosis."""
    # The excess kurtosis of a rank sum is -1.2 (l^2 + r^2 + l r + l + r) / (l r (l + r + 1)).
    product = left * right
    return 0.05 * (left * left + right * right + product + left + right) / (product * (left + right + 1.0))
