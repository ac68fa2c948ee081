"""An 80 % prediction interval from jobs that were left out of the fit.

The error of a job is the logarithm of its measured over its predicted step, predicted with constants that were fitted
to the runs of the other jobs; runs of one job have one error, their mean. The interval is that of Student's t for one
more value of a sample: mean +- t(0.9, n - 1) * s * sqrt(1 + 1 / n), with n jobs and s the standard deviation of their
errors. It holds for jobs that differ from the fitted ones as much as those differ from each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt
from statistics import fmean, stdev

from trainyard.stats import student_t

MIN_JOBS = 4
"""Fewest jobs for an interval: three errors have a quantile of their own scale that is too uncertain."""
_UPPER_QUANTILE = 0.9
_MOST = 100.0
"""Largest factor that a machine file may have."""


def prediction_interval(log_errors: Sequence[float]) -> tuple[float, float] | None:
    """(low, high) factors of the predicted step, extended to include 1; None for fewer than `MIN_JOBS` jobs.
    `log_errors`: of each job, as the head of this file defines it."""
    count = len(log_errors)
    if count < MIN_JOBS:
        return None
    half = student_t.quantile(_UPPER_QUANTILE, count - 1) * stdev(log_errors) * sqrt(1 + 1 / count)
    low, high = (exp(fmean(log_errors) + sign * half) for sign in (-1, 1))
    return round(max(min(1.0, low), 1 / _MOST), 4), round(min(max(1.0, high), _MOST), 4)
