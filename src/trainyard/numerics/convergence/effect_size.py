"""Size of the difference with a confidence interval: Student's t on each segment's log-losses.

Heads are runs with the change under test, bases those without; a segment is a range of steps. All differences are in
log-loss, so that they are relative.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from trainyard.numerics.convergence.paired_curves import F64
from trainyard.stats.student_t import quantile, two_sided_p

_POWER = 0.9
"""Probability with which the estimated number of pairs settles the verdict."""
_MAX_PAIRS = 10_000
_PAIRS_LIKE_NORMAL = 50
"""Number of pairs from which on the quantiles of Student's t hardly change with it."""


class Sizes(NamedTuple):
    """Per segment: `mean`: head minus base in log-loss, with the interval `low` to `high`; `error`: its standard error;
    `noise`: standard deviation of a run's log-loss within its seed. `freedom`: degrees of freedom of the noise, equal
    for all segments; with 0, intervals are infinite."""

    mean: F64
    low: F64
    high: F64
    error: F64
    noise: F64
    freedom: int

    def p(self, segment: int) -> float:
        """Two-sided p-value of no difference. `segment`: its index."""
        mean, error = abs(float(self.mean[segment])), float(self.error[segment])
        if not self.freedom or not mean:
            return 1.0
        return two_sided_p(mean / error, self.freedom) if error else 0.0


def sizes(groups: Sequence[tuple[F64, F64]], alpha: float) -> Sizes:
    """Estimates the difference between heads and bases. `groups`: (heads, bases) of each seed, log-losses, each
    [run, segment]; `alpha`: error rate of the intervals.

    Model: a run is its seed's value, plus the difference if it is a head, plus noise of constant variance. The noise is
    estimated from repeats on a side (A/A) and from the scatter of the seeds' differences, pooled by degrees of freedom.
    """
    # The difference of the means of h and b runs has the variance noise^2 (1/h + 1/b): each seed's weight is its
    # inverse.
    weights = np.array([[len(heads) * len(bases) / (len(heads) + len(bases))] for heads, bases in groups])
    differences = np.array([heads.mean(axis=0) - bases.mean(axis=0) for heads, bases in groups])
    mean_difference = (weights * differences).sum(axis=0) / weights.sum()
    sum_of_squares = (weights * (differences - mean_difference) ** 2).sum(axis=0)
    freedom = len(groups) - 1
    for side_losses in (side_losses for group in groups for side_losses in group):
        sum_of_squares = sum_of_squares + ((side_losses - side_losses.mean(axis=0)) ** 2).sum(axis=0)
        freedom += len(side_losses) - 1
    if not freedom:
        unknown = np.full_like(mean_difference, inf)
        return Sizes(mean=mean_difference, low=-unknown, high=unknown, error=unknown, noise=unknown, freedom=0)
    noise = np.sqrt(sum_of_squares / freedom)
    error = noise / np.sqrt(weights.sum())
    half_interval = quantile(1 - alpha / 2, freedom) * error
    return Sizes(
        mean=mean_difference,
        low=mean_difference - half_interval,
        high=mean_difference + half_interval,
        error=error,
        noise=noise,
        freedom=freedom,
    )


def pairs_needed(noise: float, repeat_freedom: int, margin: float, alpha: float) -> int | None:
    """Number of seeds, with one head and one base each, with which identical training is judged the same with a
    probability of 90 %; None: over 10,000, or the noise is unknown. `noise`, `margin`: in log-loss. `repeat_freedom`:
    degrees of freedom of the noise from A/A runs."""
    if noise == inf:
        return None
    for pairs in range(2, _MAX_PAIRS):
        freedom = pairs - 1 + repeat_freedom
        quantile_sum = quantile(1 - alpha / 2, freedom) + quantile((1 + _POWER) / 2, freedom)
        # The difference of a head and a base has the variance 2 noise^2, divided by the number of pairs.
        estimated_pairs = 2 * (quantile_sum * noise / margin) ** 2
        if estimated_pairs <= pairs:
            return pairs
        if pairs > _PAIRS_LIKE_NORMAL:
            return ceil(estimated_pairs) if estimated_pairs < _MAX_PAIRS else None
    return None
