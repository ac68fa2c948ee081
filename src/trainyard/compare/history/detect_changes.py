"""Detects changes in a series: steps, drifts, excursions and spikes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard.compare.history import describe_change
from trainyard.compare.history.series_changes import DetectedChanges, SeriesChange
from trainyard.compare.history.statistics.autocorrelation import climbs, inflation
from trainyard.compare.history.statistics.change_points import change_points
from trainyard.compare.history.statistics.critical_values import FEWEST, critical
from trainyard.compare.history.statistics.excursions import LONGEST, excursions
from trainyard.compare.history.statistics.spikes import spikes
from trainyard.compare.history.statistics.split_scan import Scan
from trainyard.compare.history.statistics.step_or_drift import shape
from trainyard.errors import BadInput, NotEnoughEvidence


def detect(values: Iterable[float]) -> DetectedChanges:
    """Detect the changes of a series. Raises `NotEnoughEvidence` for fewer than FEWEST points, `BadInput` for a value
    that is not a number."""
    scan = Scan()
    scan.extend(checked(values))
    return seen(scan)


def checked(values: Iterable[float]) -> NDArray[np.float64]:
    """The values (n,). Raises `BadInput` for one that is not a finite number."""
    taken = np.asarray(list(values), float)
    if not np.isfinite(taken).all():
        at = int(np.flatnonzero(~np.isfinite(taken))[0])
        raise BadInput(f"point {at} of the series is {taken[at]}.", "Leave out points that were not measured.")
    return taken


def seen(scan: Scan, stricter: float = 0.0) -> DetectedChanges:
    """The changes in the points so far. `stricter`: added to the critical value of a single look."""
    values = scan.values
    n = values.size
    if n < FEWEST:
        raise NotEnoughEvidence(
            f"{n} points are too few: detecting a change needs at least {FEWEST}.", "Wait for more runs."
        )
    wide, least = float(inflation(values[None])[0]), critical(n) + stricter
    steps = change_points(values, scan.splits(), wide, least)
    changes = _gone_joined(_shaped(values, steps, wide, least))
    if not any(change.lasting for change in changes) and climbs(values):
        changes = [describe_change.drift(values, (0, n), (0, 0), 0, n, 1.0)]
    for start, stop in pairwise(_edges(changes, n)):
        if not any(change.kind == "drift" and change.at <= start < change.until for change in changes):
            windows = excursions(values[start:stop], wide, least)
            changes += [describe_change.excursion(values, start + a, start + b, start, stop, wide) for a, b in windows]
    changes += [describe_change.spike(values, at, until, wide) for at, until in spikes(values, _edges(changes, n))]
    return DetectedChanges(
        points=n, changes=tuple(sorted(changes, key=lambda change: change.at)), inflation=wide, critical=least
    )


def _edges(changes: list[SeriesChange], n: int) -> list[int]:
    return sorted({0, n, *(edge for change in changes for edge in (change.at, change.until))})


def _shaped(values: NDArray[np.float64], steps: list[int], wide: float, least: float) -> list[SeriesChange]:
    """Classify each sequence of steps in one direction as steps or as a drift."""
    bounds = [0, *steps, values.size]
    middles = [float(np.median(values[a:b])) for a, b in pairwise(bounds)]
    up = [after > before for before, after in pairwise(middles)]
    changes: list[SeriesChange] = []
    first = 0
    while first < len(steps):
        last = first
        while last + 1 < len(steps) and up[last + 1] == up[first]:
            last += 1
        changes += _run(values, bounds[first : last + 3], wide, least)
        first = last + 1
    return sorted(changes, key=lambda change: change.at)


def _run(values: NDArray[np.float64], bounds: list[int], wide: float, least: float) -> list[SeriesChange]:
    """The steps between the first and the last of `bounds`, all in one direction, as one drift, or else each separately
    as a step or a drift."""
    start, *steps, stop = bounds
    best = shape(values[start:stop], [at - start for at in steps], wide, least)
    drifts = best.end > best.begin
    if not drifts and len(steps) > 1:
        placed = [start, *(start + at for at in best.steps), stop]
        triples = zip(placed, placed[1:], placed[2:])
        return [change for triple in triples for change in _run(values, list(triple), wide, least)]
    own = [start, *(start + at for at in best.steps), stop]
    changes = [describe_change.step(values, at, a, b, wide, drifts) for a, at, b in zip(own, own[1:], own[2:])]
    if drifts:
        ramp, begins = (start + best.begin, start + best.end), (start + best.begins[0], start + best.begins[1])
        changes.append(describe_change.drift(values, ramp, begins, start, stop, wide))
    return changes


def _gone_joined(changes: list[SeriesChange]) -> list[SeriesChange]:
    """Join two steps into an excursion if they are few points apart and the second reverses 2/3 to 4/3 of the first."""
    joined: list[SeriesChange] = []
    for change in changes:
        last = joined[-1] if joined else None
        if last and last.kind == change.kind == "step" and change.at - last.at <= LONGEST:
            undone = -change.shift.value / last.shift.value if last.shift.value else 0.0
            if 2 / 3 <= undone <= 4 / 3:
                joined[-1] = replace(last, kind="excursion", until=change.at)
                continue
        joined.append(change)
    return joined
