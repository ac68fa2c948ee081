"""Changes of a series: steps, drifts, what went away again, and spikes."""

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
    """Raises `NotEnoughEvidence` for fewer than FEWEST points, `BadInput` for a value that is no number."""
    scan = Scan()
    scan.extend(checked(values))
    return seen(scan)


def checked(values: Iterable[float]) -> NDArray[np.float64]:
    """(n,): the values; raises `BadInput` for one that is no finite number."""
    taken = np.asarray(list(values), float)
    if not np.isfinite(taken).all():
        at = int(np.flatnonzero(~np.isfinite(taken))[0])
        raise BadInput(f"point {at} of the series is {taken[at]}.", "Leave out what was not measured.")
    return taken


def seen(scan: Scan, stricter: float = 0.0) -> DetectedChanges:
    """What the points so far show; `stricter`: by how much stronger than for one look a split must be."""
    values = scan.values
    n = values.size
    if n < FEWEST:
        raise NotEnoughEvidence(
            f"{n} points are too few: a change can first be told from chance at {FEWEST}.", "Wait for more runs."
        )
    wide, least = float(inflation(values[None])[0]), critical(n) + stricter
    steps = change_points(values, scan.splits(), wide, least)
    found = _gone_joined(_shaped(values, steps, wide, least))
    if not any(one.lasting for one in found) and climbs(values):
        found = [describe_change.drift(values, (0, n), (0, 0), 0, n, 1.0)]
    for start, stop in pairwise(_edges(found, n)):
        if not any(one.kind == "drift" and one.at <= start < one.until for one in found):
            gone = excursions(values[start:stop], wide, least)
            found += [describe_change.excursion(values, start + a, start + b, start, stop, wide) for a, b in gone]
    found += [describe_change.spike(values, at, until, wide) for at, until in spikes(values, _edges(found, n))]
    return DetectedChanges(
        points=n, changes=tuple(sorted(found, key=lambda one: one.at)), inflation=wide, critical=least
    )


def _edges(found: list[SeriesChange], n: int) -> list[int]:
    return sorted({0, n, *(place for one in found for place in (one.at, one.until))})


def _shaped(values: NDArray[np.float64], steps: list[int], wide: float, least: float) -> list[SeriesChange]:
    """Each run of steps in one direction as the steps or the drift that it is."""
    bounds = [0, *steps, values.size]
    middles = [float(np.median(values[a:b])) for a, b in pairwise(bounds)]
    up = [after > before for before, after in pairwise(middles)]
    found: list[SeriesChange] = []
    first = 0
    while first < len(steps):
        last = first
        while last + 1 < len(steps) and up[last + 1] == up[first]:
            last += 1
        found += _run(values, bounds[first : last + 3], wide, least)
        first = last + 1
    return sorted(found, key=lambda one: one.at)


def _run(values: NDArray[np.float64], bounds: list[int], wide: float, least: float) -> list[SeriesChange]:
    """The steps between the first and the last of `bounds`, all in one direction: as one drift, or else each by itself
    as a step or a drift."""
    start, *steps, stop = bounds
    best = shape(values[start:stop], [at - start for at in steps], wide, least)
    drifts = best.end > best.begin
    if not drifts and len(steps) > 1:
        placed = [start, *(start + at for at in best.steps), stop]
        return [one for three in zip(placed, placed[1:], placed[2:]) for one in _run(values, list(three), wide, least)]
    own = [start, *(start + at for at in best.steps), stop]
    found = [describe_change.step(values, at, a, b, wide, drifts) for a, at, b in zip(own, own[1:], own[2:])]
    if drifts:
        ramp, begins = (start + best.begin, start + best.end), (start + best.begins[0], start + best.begins[1])
        found.append(describe_change.drift(values, ramp, begins, start, stop, wide))
    return found


def _gone_joined(found: list[SeriesChange]) -> list[SeriesChange]:
    """Two steps with few points between them, the second of which undoes the first but for a third, are one
    excursion."""
    joined: list[SeriesChange] = []
    for one in found:
        last = joined[-1] if joined else None
        if last and last.kind == one.kind == "step" and one.at - last.at <= LONGEST:
            undone = -one.shift.value / last.shift.value if last.shift.value else 0.0
            if 2 / 3 <= undone <= 4 / 3:
                joined[-1] = replace(last, kind="excursion", until=one.at)
                continue
        joined.append(one)
    return joined
