"""Descriptions of changes: the range of possible positions, the levels before and after, and the shift between them."""

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


def describe_step(
    values: NDArray[np.float64], at: int, start: int, stop: int, inflation: float, drifting: bool = False
) -> SeriesChange:
    """Describe a step at `at` between the neighbouring changes at `start` and `stop`."""
    if drifting:
        start, stop = max(start, at - _LEVEL_POINTS), min(stop, at + _LEVEL_POINTS)
    low, high = locate_step(values[start:stop], at - start, inflation)
    before, after = values[start:at], values[at:stop]
    split = find_best_splits(values, np.array([start]), stop - start)
    return SeriesChange(
        kind="step",
        at=at,
        until=at,
        low=start + low,
        high=start + high,
        before=estimate_level(before, inflation),
        after=estimate_level(after, inflation),
        shift=estimate_shift(before, after, inflation),
        strength=float(split.strengths(inflation)[0]),
    )


def describe_drift(
    values: NDArray[np.float64], ramp: tuple[int, int], begins: tuple[int, int], start: int, stop: int, inflation: float
) -> SeriesChange:
    """Describe a drift from ramp[0] to ramp[1], between `start` and `stop`. The levels are those before and after it;
    if it begins or ends with the interval, those of its first or last points."""
    begin, end = ramp
    edge_points = min(_LEVEL_POINTS, max(5, (end - begin) // 10))
    before = (
        values[max(start, begin - _LEVEL_POINTS) : begin] if begin - start >= 5 else values[begin : begin + edge_points]
    )
    after = values[end : min(stop, end + _LEVEL_POINTS)] if stop - end >= 5 else values[end - edge_points : end]
    split = find_best_splits(values, np.array([start]), stop - start)
    return SeriesChange(
        kind="drift",
        at=begin,
        until=end,
        low=begins[0],
        high=begins[1],
        before=estimate_level(before, inflation),
        after=estimate_level(after, inflation),
        shift=estimate_shift(before, after, inflation),
        strength=float(split.strengths(inflation)[0]),
    )


def describe_excursion(
    values: NDArray[np.float64], at: int, until: int, start: int, stop: int, inflation: float
) -> SeriesChange:
    """Describe an excursion between the neighbouring changes, compared with the points around it."""
    around = np.concatenate([values[start:at], values[until:stop]])
    return _describe_temporary(values, "excursion", at, until, around, inflation)


def describe_spike(values: NDArray[np.float64], at: int, until: int, inflation: float) -> SeriesChange:
    around = np.concatenate([values[max(0, at - _LEVEL_POINTS) : at], values[until : until + _LEVEL_POINTS]])
    return _describe_temporary(values, "spike", at, until, around, inflation)


def _describe_temporary(
    values: NDArray[np.float64],
    kind: Literal["excursion", "spike"],
    at: int,
    until: int,
    around: NDArray[np.float64],
    inflation: float,
) -> SeriesChange:
    """A change that ends again: the values from `at` to before `until` against those `around` them. `inflation`: of the
    variance of a mean, from autocorrelation."""
    return SeriesChange(
        kind=kind,
        at=at,
        until=until,
        low=at,
        high=at,
        before=estimate_level(around, inflation),
        after=estimate_level(values[at:until], inflation),
        shift=estimate_shift(around, values[at:until], inflation),
    )
