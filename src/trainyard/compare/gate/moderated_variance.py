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
_MAX_PRIOR_FREEDOM = 20.0
"""Upper limit of the prior's degrees of freedom: a dozen accounts do not determine it better. Without it, the false
positive rate of accounts exceeds its nominal value (`validation.gate`)."""


def moderate_variances(variances: Column, freedom: int) -> tuple[Column, float]:
    """Moderated variances (n,) and their degrees of freedom, from variances (n,) with `freedom` degrees each."""
    is_positive = variances > 0
    if np.count_nonzero(is_positive) < 2:
        return variances, float(freedom)
    logs = np.log(variances[is_positive]) - digamma(freedom / 2) + log(freedom / 2)
    excess = float(np.var(logs, ddof=1)) - trigamma(freedom / 2)
    prior = min(_MAX_PRIOR_FREEDOM, 2 * _invert_trigamma(excess)) if excess > 0 else _MAX_PRIOR_FREEDOM
    common = exp(float(np.mean(logs)) + digamma(prior / 2) - log(prior / 2))
    return (prior * common + freedom * variances) / (prior + freedom), prior + freedom


def digamma(x: float) -> float:
    """The derivative of log gamma: by recurrence up to x >= 8, then the asymptotic series (Abramowitz & Stegun
    6.3.18)."""
    shift = 0.0
    while x < 8:
        shift -= 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return shift + log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """The derivative of digamma: by recurrence up to x >= 8, then the asymptotic series (Abramowitz & Stegun
    6.4.12)."""
    shift = 0.0
    while x < 8:
        shift += 1 / (x * x)
        x += 1
    square = 1 / (x * x)
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (1 / 30 - square * 5 / 66))))
    return shift + 1 / x + square / 2 + series / x


def _invert_trigamma(value: float) -> float:
    """The x with trigamma(x) = `value`, by bisection on a logarithmic scale; trigamma decreases."""
    low, high = 1e-9, 1e9
    for _ in range(200):
        at = sqrt(low * high)
        low, high = (at, high) if trigamma(at) > value else (low, at)
    return sqrt(low * high)
