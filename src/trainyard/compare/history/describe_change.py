"""Descriptions of changes: the range of possible positions, the levels before and after, and the shift between them.

Points are indices of `values`, the whole series (n,); an interval from `start` to `stop` excludes `stop`.
`variance_inflation` is the variance of a long mean relative to that of independent values, due to autocorrelation
(`statistics/autocorrelation.py`); it widens all intervals.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.levels import estimate_level, estimate_shift
from trainyard.compare.history.statistics.split_scan import find_best_splits
from trainyard.compare.history.statistics.step_or_drift import locate_step

_LEVEL_POINTS = 15
"""Points on each side from which a level is estimated if it does not extend further."""
_MIN_LEVEL_POINTS = 5
"""Fewest points before or after a drift from which a level is estimated."""


def describe_step(
    values: NDArray[np.float64], at: int, start: int, stop: int, variance_inflation: float, drifting: bool = False
) -> SeriesChange:
    """Describes a step at point `at` between the neighbouring changes at `start` and `stop`. `drifting`: there is a
    drift too, so that only the points next to the step give its levels. `variance_inflation`: as in
    `estimate_variance_inflation`."""
    if drifting:
        start, stop = max(start, at - _LEVEL_POINTS), min(stop, at + _LEVEL_POINTS)
    low, high = locate_step(values[start:stop], at - start, variance_inflation)  # counted from `start`
    before, after = values[start:at], values[at:stop]
    split = find_best_splits(values, np.array([start]), stop - start)
    return SeriesChange(
        kind="step",
        at=at,
        until=at,
        low=start + low,
        high=start + high,
        before=estimate_level(before, variance_inflation),
        after=estimate_level(after, variance_inflation),
        shift=estimate_shift(before, after, variance_inflation),
        strength=float(split.strengths(variance_inflation)[0]),
    )


def describe_drift(
    values: NDArray[np.float64],
    ramp: tuple[int, int],
    begins: tuple[int, int],
    start: int,
    stop: int,
    variance_inflation: float,
) -> SeriesChange:
    """Describes a drift from point ramp[0] to ramp[1], which may begin at begins[0] to begins[1], between the
    neighbouring changes at `start` and `stop`. The levels are those before and after it; if it begins or ends with the
    interval, those of its first or last points. `variance_inflation`: as in `estimate_variance_inflation`."""
    begin, end = ramp
    edge_points = min(_LEVEL_POINTS, max(_MIN_LEVEL_POINTS, (end - begin) // 10))
    before = (
        values[max(start, begin - _LEVEL_POINTS) : begin]
        if begin - start >= _MIN_LEVEL_POINTS
        else values[begin : begin + edge_points]
    )
    after = (
        values[end : min(stop, end + _LEVEL_POINTS)]
        if stop - end >= _MIN_LEVEL_POINTS
        else values[end - edge_points : end]
    )
    split = find_best_splits(values, np.array([start]), stop - start)
    return SeriesChange(
        kind="drift",
        at=begin,
        until=end,
        low=begins[0],
        high=begins[1],
        before=estimate_level(before, variance_inflation),
        after=estimate_level(after, variance_inflation),
        shift=estimate_shift(before, after, variance_inflation),
        strength=float(split.strengths(variance_inflation)[0]),
    )


def describe_excursion(
    values: NDArray[np.float64], at: int, until: int, start: int, stop: int, variance_inflation: float
) -> SeriesChange:
    """Describes an excursion from point `at` to before `until`, between the neighbouring changes at `start` and `stop`,
    compared with the points around it. `variance_inflation`: as in `estimate_variance_inflation`."""
    around = np.concatenate([values[start:at], values[until:stop]])
    return _describe_temporary(values, "excursion", at, until, around, variance_inflation)


def describe_spike(values: NDArray[np.float64], at: int, until: int, variance_inflation: float) -> SeriesChange:
    """Describes a spike from point `at` to before `until`, compared with `_LEVEL_POINTS` points on each side."""
    around = np.concatenate([values[max(0, at - _LEVEL_POINTS) : at], values[until : until + _LEVEL_POINTS]])
    return _describe_temporary(values, "spike", at, until, around, variance_inflation)


def _describe_temporary(
    values: NDArray[np.float64],
    kind: Literal["excursion", "spike"],
    at: int,
    until: int,
    around: NDArray[np.float64],
    variance_inflation: float,
) -> SeriesChange:
    """A change that ends again: the values from point `at` to before `until` against those `around` them.
    `variance_inflation`: as in `estimate_variance_inflation`."""
    return SeriesChange(
        kind=kind,
        at=at,
        until=until,
        low=at,
        high=at,
        before=estimate_level(around, variance_inflation),
        after=estimate_level(values[at:until], variance_inflation),
        shift=estimate_shift(around, values[at:until], variance_inflation),
    )
