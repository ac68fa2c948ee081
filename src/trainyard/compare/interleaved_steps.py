"""Compare the steps of several layouts that were run in interleaved rounds, each of which runs every layout once.

The runs of a round are close in time, so that slow drift of the machine cancels in their ratio. Runs are the
replicates, not steps: the steps of one run share its offset. Intervals are Student's t on logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from statistics import fmean, stdev

import msgspec

from trainyard.stats.student_t import quantile

ALPHA = 0.05
"""Error rate of the interval of a step, and of all comparisons of a measurement together."""


class MeanStep(msgspec.Struct, frozen=True, kw_only=True):
    """Geometric mean of a layout's steps over rounds, in ns. `low`, `high`: its confidence interval; None for a single
    round."""

    step_ns: float
    low_ns: float | None
    high_ns: float | None


class RatioToFastest(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over rounds of a layout's step over that of the layout with the least mean step. `low`, `high`: its
    confidence interval, which holds for all layouts together; None for a single round. `separated`: the interval is
    above 1, so that the layout is slower."""

    ratio: float
    low: float | None
    high: float | None
    separated: bool


def mean_step(steps_ns: Sequence[float]) -> MeanStep:
    """The mean of the steps (ns) that one layout had in each round, of which there is at least one."""
    mean, half_width = _mean_log(steps_ns, ALPHA)
    low, high = _bounds(mean, half_width)
    return MeanStep(step_ns=exp(mean), low_ns=low, high_ns=high)


def compare_with_fastest(steps_ns: Sequence[Sequence[float]]) -> tuple[RatioToFastest, ...]:
    """The ratio of each layout to the fastest, in the order of the layouts.

    `steps_ns`: [layout][round], all layouts with the same rounds. The fastest is chosen by the same data, so that each
    interval has the error rate `ALPHA` over the number of pairs of layouts (Bonferroni).
    """
    fastest = min(steps_ns, key=lambda steps: fmean(map(log, steps)))
    pairs = len(steps_ns) * (len(steps_ns) - 1) // 2
    ratios: list[RatioToFastest] = []
    for steps in steps_ns:
        if steps is fastest:
            ratios.append(RatioToFastest(ratio=1.0, low=1.0, high=1.0, separated=False))
            continue
        mean, half_width = _mean_log([step / base for step, base in zip(steps, fastest, strict=True)], ALPHA / pairs)
        low, high = _bounds(mean, half_width)
        ratios.append(RatioToFastest(ratio=exp(mean), low=low, high=high, separated=low is not None and low > 1))
    return tuple(ratios)


def _mean_log(values: Sequence[float], alpha: float) -> tuple[float, float]:
    """(mean of the logarithms, half the width of its interval with the error rate `alpha`, infinite for one value)."""
    logs = [log(value) for value in values]
    if len(logs) < 2:
        return logs[0], inf
    return fmean(logs), quantile(1 - alpha / 2, len(logs) - 1) * stdev(logs) / sqrt(len(logs))


def _bounds(mean: float, half_width: float) -> tuple[float | None, float | None]:
    """The bounds of an interval of logarithms as ratios; None if it is infinite."""
    return (None, None) if half_width == inf else (exp(mean - half_width), exp(mean + half_width))
