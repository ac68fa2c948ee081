"""How precisely the step time of a run is known, from the times of its steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MEDIAN_VARIANCE = np.pi / 2
"""Variance of the median over that of the mean, of many normally distributed values."""


def step_noise(repeats_ns: Sequence[Sequence[int]]) -> float:
    """Standard error of the logarithm of the median step. `repeats_ns`: times of the steps of each repeat.

    The larger of two estimates: from the steps, if they were independent, and from the medians of the repeats, which
    differ more if the speed of the machine changes slowly. 0 if no repeat has two steps and there is one repeat.
    """
    logs = [np.log(np.asarray(repeat_ns, np.float64)) for repeat_ns in repeats_ns if len(repeat_ns)]
    step_count = sum(map(len, logs))
    within = between = 0.0  # variances of the median step's logarithm
    if step_count > len(logs):
        squares = sum(float(np.sum((repeat - repeat.mean()) ** 2)) for repeat in logs)
        within = _MEDIAN_VARIANCE * squares / (step_count - len(logs)) / step_count
    if len(logs) > 1:
        between = float(np.var([np.median(repeat) for repeat in logs], ddof=1)) / len(logs)
    return float(np.sqrt(max(within, between)))
