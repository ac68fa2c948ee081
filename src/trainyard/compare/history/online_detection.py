"""Online detection of level shifts and drifts: points are added one by one, with one alert per change."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.compare.history.detect_changes import check_values, find_changes
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.critical_values import MIN_POINTS
from trainyard.compare.history.statistics.split_scan import SplitScan

REPEATED_LOOKS_ALLOWANCE = 0.8
"""Added to the critical value, in normal deviations, because the series is tested after each point: with it, fewer than
1 in 100 series of 200 points of noise raise an alert (`python -m validation.history_noise`)."""


class OnlineDetector:
    """Detects the changes that `detect` finds in the whole series, a few points later: it tests after every
    point and therefore uses a larger critical value.

    A point costs the tests of the intervals that end at it, whose number grows with the series: a few ms at 200 points,
    some tens of ms at 10,000.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._scan = SplitScan()
        self._reported: list[SeriesChange] = []
        self.add(values)

    def add(self, values: Iterable[float]) -> tuple[SeriesChange, ...]:
        """Add points; returns the level shifts and drifts not returned before. Raises `BadInput` for a value that is
        not a number, without adding any."""
        self._scan.extend(check_values(values))
        if self._scan.values.size < MIN_POINTS:
            return ()
        new = tuple(
            change
            for change in find_changes(self._scan, REPEATED_LOOKS_ALLOWANCE).lasting
            if not any(is_same_change(change, old) for old in self._reported)
        )
        self._reported.extend(new)
        return new


def is_same_change(first: SeriesChange, other: SeriesChange) -> bool:
    """Whether two detections at different lengths of a series are the same change: they have the same direction and
    their ranges (for a drift, its whole extent) overlap."""
    same_direction = (first.shift.value > 0) == (other.shift.value > 0)
    return same_direction and first.low <= max(other.high, other.until) and other.low <= max(first.high, first.until)
