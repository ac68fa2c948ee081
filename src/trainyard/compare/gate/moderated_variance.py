"""Moderated variances for Student's t: estimates for many accounts from few pairs that share information.

The variance of one account over five pairs is a poor estimate. All accounts' variances are modelled as draws from one
scaled inverse chi-square distribution, which is fitted to them, and each estimate is shrunk towards its mean (Smyth
2004, Statistical Applications in Genetics and Molecular Biology 3(1), article 3, sections 3 and 6).
"""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]
_ASYMPTOTIC_FROM = 8
"""Argument from which the asymptotic series of digamma and trigamma are used."""
_TRIGAMMA_RANGE, _BISECTIONS = (1e-9, 1e9), 200
"""Range in which trigamma is inverted, and the halvings of its logarithm: enough for full precision."""
_MAX_PRIOR_FREEDOM = 20.0
"""Upper limit of the prior's degrees of freedom: a dozen accounts do not determine it better. Without it, the false
positive rate of accounts exceeds its nominal value (`validation.gate`)."""


def moderate_variances(variances: Column, freedom: int) -> tuple[Column, float]:
    """Moderated variances (n,) and their degrees of freedom, from variances (n,) with `freedom` degrees each."""
    is_positive = variances > 0
    if np.count_nonzero(is_positive) < 2:
        return variances, float(freedom)
    # The logarithm of a sample variance with d degrees of freedom has the mean log(true) + digamma(d/2) - log(d/2) and
    # the variance trigamma(d/2); a larger variance of the logs is that of the prior, with d0 degrees: trigamma(d0/2).
    logs = np.log(variances[is_positive]) - digamma(freedom / 2) + log(freedom / 2)
    excess_variance = float(np.var(logs, ddof=1)) - trigamma(freedom / 2)
    prior_freedom = (
        min(_MAX_PRIOR_FREEDOM, 2 * _invert_trigamma(excess_variance)) if excess_variance > 0 else _MAX_PRIOR_FREEDOM
    )
    prior_variance = exp(float(np.mean(logs)) + digamma(prior_freedom / 2) - log(prior_freedom / 2))
    return (prior_freedom * prior_variance + freedom * variances) / (prior_freedom + freedom), prior_freedom + freedom


def digamma(x: float) -> float:
    """The derivative of log gamma: by recurrence up to x >= `_ASYMPTOTIC_FROM`, then the asymptotic series (Abramowitz
    & Stegun 6.3.18)."""
    shift = 0.0
    while x < _ASYMPTOTIC_FROM:
        shift -= 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return shift + log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """The derivative of digamma: by recurrence up to x >= `_ASYMPTOTIC_FROM`, then the asymptotic series (Abramowitz &
    Stegun 6.4.12)."""
    shift = 0.0
    while x < _ASYMPTOTIC_FROM:
        shift += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
    return shift + 1 / x + square / 2 + series / x


def _invert_trigamma(value: float) -> float:
    """The x with trigamma(x) = `value`, by bisection on a logarithmic scale; trigamma decreases."""
    low, high = _TRIGAMMA_RANGE
    for _ in range(_BISECTIONS):
        middle = sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > value else (low, middle)
    return sqrt(low * high)
