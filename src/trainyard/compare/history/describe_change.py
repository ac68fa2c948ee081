"""Descriptions of changes: the range of possible positions, the levels before and after, and the shift between them."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.levels import level, shift
from trainyard.compare.history.statistics.split_scan import best_splits
from trainyard.compare.history.statistics.step_or_drift import places

_NEAR = 15
"""Points on each side from which a level is estimated if it does not extend further."""


def step(
    values: NDArray[np.float64], at: int, start: int, stop: int, inflation: float, drifting: bool = False
) -> SeriesChange:
    """Describe a step at `at` between the neighbouring changes at `start` and `stop`."""
    if drifting:
        start, stop = max(start, at - _NEAR), min(stop, at + _NEAR)
    low, high = places(values[start:stop], at - start, inflation)
    before, after = values[start:at], values[at:stop]
    split = best_splits(values, np.array([start]), stop - start)
    return SeriesChange(
        kind="step",
        at=at,
        until=at,
        low=start + low,
        high=start + high,
        before=level(before, inflation),
        after=level(after, inflation),
        shift=shift(before, after, inflation),
        strength=float(split.strengths(inflation)[0]),
    )


def drift(
    values: NDArray[np.float64], ramp: tuple[int, int], begins: tuple[int, int], start: int, stop: int, inflation: float
) -> SeriesChange:
    """Describe a drift from ramp[0] to ramp[1], between `start` and `stop`. The levels are those before and after it;
    if it begins or ends with the interval, those of its first or last points."""
    begin, end = ramp
    few = min(_NEAR, max(5, (end - begin) // 10))
    before = values[max(start, begin - _NEAR) : begin] if begin - start >= 5 else values[begin : begin + few]
    after = values[end : min(stop, end + _NEAR)] if stop - end >= 5 else values[end - few : end]
    split = best_splits(values, np.array([start]), stop - start)
    return SeriesChange(
        kind="drift",
        at=begin,
        until=end,
        low=begins[0],
        high=begins[1],
        before=level(before, inflation),
        after=level(after, inflation),
        shift=shift(before, after, inflation),
        strength=float(split.strengths(inflation)[0]),
    )


def excursion(
    values: NDArray[np.float64], at: int, until: int, start: int, stop: int, inflation: float
) -> SeriesChange:
    """Describe an excursion between the neighbouring changes, compared with the points around it."""
    around = np.concatenate([values[start:at], values[until:stop]])
    return _held_against(values, "excursion", at, until, around, inflation)


def spike(values: NDArray[np.float64], at: int, until: int, inflation: float) -> SeriesChange:
    around = np.concatenate([values[max(0, at - _NEAR) : at], values[until : until + _NEAR]])
    return _held_against(values, "spike", at, until, around, inflation)


def _held_against(
    values: NDArray[np.float64],
    kind: Literal["excursion", "spike"],
    at: int,
    until: int,
    around: NDArray[np.float64],
    inflation: float,
) -> SeriesChange:
    return SeriesChange(
        kind=kind,
        at=at,
        until=until,
        low=at,
        high=at,
        before=level(around, inflation),
        after=level(values[at:until], inflation),
        shift=shift(around, values[at:until], inflation),
    )
