"""Detects changes in a series: steps, drifts, excursions and spikes.

Steps and drifts last; an excursion reverses within `MAX_EXCURSION` points, and a spike is a few outliers. Points are
indices of the series (n,). `critical` is the strength, in normal deviations, that a change must exceed;
`variance_inflation` is the variance of a long mean relative to that of independent values, due to autocorrelation.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard.compare.history import describe_change
from trainyard.compare.history.series_changes import DetectedChanges, SeriesChange
from trainyard.compare.history.statistics.autocorrelation import estimate_variance_inflation, is_steady_trend
from trainyard.compare.history.statistics.change_points import find_change_points
from trainyard.compare.history.statistics.critical_values import MIN_POINTS, look_up_critical
from trainyard.compare.history.statistics.excursions import MAX_EXCURSION, find_excursions
from trainyard.compare.history.statistics.spikes import find_spikes
from trainyard.compare.history.statistics.split_scan import SplitScan
from trainyard.compare.history.statistics.step_or_drift import choose_shape
from trainyard.errors import BadInput, NotEnoughEvidence


def detect(values: Iterable[float]) -> DetectedChanges:
    """Detect the changes of a series. Raises `NotEnoughEvidence` for fewer than MIN_POINTS points, `BadInput` for a
    value that is not a number."""
    scan = SplitScan()
    scan.extend(check_values(values))
    return find_changes(scan)


def check_values(values: Iterable[float]) -> NDArray[np.float64]:
    """The values (n,). Raises `BadInput` for one that is not a finite number."""
    array = np.asarray(list(values), float)
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise BadInput(f"point {at} of the series is {array[at]}.", "Leave out points that were not measured.")
    return array


def find_changes(scan: SplitScan, allowance: float = 0.0) -> DetectedChanges:
    """The changes in the points of `scan` so far. `allowance`: added to the critical value of a single look, in normal
    deviations."""
    values = scan.values
    n = values.size
    # In order: steps and drifts; a steady trend, which has no best split; in each interval with one level, excursions;
    # and spikes.
    if n < MIN_POINTS:
        raise NotEnoughEvidence(
            f"{n} point{'s are' if n != 1 else ' is'} too few: detecting a change needs at least {MIN_POINTS}.",
            "Wait for more runs.",
        )
    variance_inflation, critical = float(estimate_variance_inflation(values[None])[0]), look_up_critical(n) + allowance
    steps = find_change_points(values, scan.splits(), variance_inflation, critical)
    changes = _join_excursions(_classify_steps(values, steps, variance_inflation, critical))
    if not any(change.lasting for change in changes) and is_steady_trend(values):
        changes = [
            describe_change.describe_drift(values, ramp=(0, n), begins=(0, 0), start=0, stop=n, variance_inflation=1.0)
        ]
    for start, stop in pairwise(_list_edges(changes, n)):
        if not any(change.kind == "drift" and change.at <= start < change.until for change in changes):
            windows = find_excursions(values[start:stop], variance_inflation, critical)
            changes += [
                describe_change.describe_excursion(values, start + a, start + b, start, stop, variance_inflation)
                for a, b in windows
            ]
    changes += [
        describe_change.describe_spike(values, at, until, variance_inflation)
        for at, until in find_spikes(values, _list_edges(changes, n))
    ]
    return DetectedChanges(
        points=n,
        changes=tuple(sorted(changes, key=lambda change: change.at)),
        inflation=variance_inflation,
        critical=critical,
    )


def _list_edges(changes: list[SeriesChange], n: int) -> list[int]:
    """The points at which a level begins or ends, ascending, with 0 and `n`."""
    return sorted({0, n, *(edge for change in changes for edge in (change.at, change.until))})


def _classify_steps(
    values: NDArray[np.float64], steps: list[int], variance_inflation: float, critical: float
) -> list[SeriesChange]:
    """The changes that `steps` (first points of new levels) form: each sequence of steps in one direction is described
    as steps or as a drift. `variance_inflation`, `critical`: as in `choose_shape`."""
    bounds = [0, *steps, values.size]
    medians = [float(np.median(values[a:b])) for a, b in pairwise(bounds)]
    is_rise = [after > before for before, after in pairwise(medians)]
    changes: list[SeriesChange] = []
    first = 0  # indices of `steps`: the first and the last of a sequence in one direction
    while first < len(steps):
        last = first
        while last + 1 < len(steps) and is_rise[last + 1] == is_rise[first]:
            last += 1
        changes += _describe_run(values, bounds[first : last + 3], variance_inflation, critical)
        first = last + 1
    return sorted(changes, key=lambda change: change.at)


def _describe_run(
    values: NDArray[np.float64], bounds: list[int], variance_inflation: float, critical: float
) -> list[SeriesChange]:
    """The steps between the first and the last of `bounds` (points), all in one direction, as one drift, or else each
    separately as a step or a drift. `variance_inflation`, `critical`: as in `choose_shape`."""
    start, *steps, stop = bounds
    # Steps, with a drift or without, counted from `start`.
    shape = choose_shape(values[start:stop], [at - start for at in steps], variance_inflation, critical)
    is_drift = shape.end > shape.begin
    if not is_drift and len(steps) > 1:
        bounds_of_steps = [start, *(start + at for at in shape.steps), stop]
        triples = zip(bounds_of_steps, bounds_of_steps[1:], bounds_of_steps[2:])
        return [
            change for triple in triples for change in _describe_run(values, list(triple), variance_inflation, critical)
        ]
    step_edges = [start, *(start + at for at in shape.steps), stop]
    changes = [
        describe_change.describe_step(values, at, a, b, variance_inflation, is_drift)
        for a, at, b in zip(step_edges, step_edges[1:], step_edges[2:])
    ]
    if is_drift:
        ramp, begins = (start + shape.begin, start + shape.end), (start + shape.begins[0], start + shape.begins[1])
        changes.append(describe_change.describe_drift(values, ramp, begins, start, stop, variance_inflation))
    return changes


_LEAST_REVERSED, _MOST_REVERSED = 2 / 3, 4 / 3
"""Fractions of a step that the next one may reverse for both to form an excursion."""


def _join_excursions(changes: list[SeriesChange]) -> list[SeriesChange]:
    """The changes, with two consecutive steps joined into one excursion if they are at most `MAX_EXCURSION` points
    apart and the second reverses from 2/3 to 4/3 of the first. `changes`: in order."""
    merged: list[SeriesChange] = []
    for change in changes:
        last = merged[-1] if merged else None
        if last and last.kind == change.kind == "step" and change.at - last.at <= MAX_EXCURSION:
            reversed_share = -change.shift.value / last.shift.value if last.shift.value else 0.0
            if _LEAST_REVERSED <= reversed_share <= _MOST_REVERSED:
                merged[-1] = replace(last, kind="excursion", until=change.at)
                continue
        merged.append(change)
    return merged
