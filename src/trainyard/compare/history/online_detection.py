"""Online change detection: points are added one by one, with one alert per change."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.compare.history.detect_changes import checked, seen
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.critical_values import FEWEST
from trainyard.compare.history.statistics.split_scan import Scan

STRICTER = 0.8
"""Added to the critical value for repeated looks: with it, fewer than 1 in 100 series of 200 points of noise raise an
alert (validation/history_noise.py)."""


class OnlineDetector:
    """Detects the changes that `detect` finds in the whole series, somewhat later: it looks after every point and
    therefore uses a stricter critical value.

    A point costs the stretches that end at it, which grow with the series: a few ms at 200 points, some tens at 10,000.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._scan = Scan()
        self._reported: list[SeriesChange] = []
        self.add(values)

    def add(self, values: Iterable[float]) -> tuple[SeriesChange, ...]:
        """Add points; returns the steps and drifts not returned before. Raises `BadInput` for a value that is not a
        number, without adding any."""
        self._scan.extend(checked(values))
        if self._scan.values.size < FEWEST:
            return ()
        new = tuple(
            change
            for change in seen(self._scan, STRICTER).lasting
            if not any(same(change, old) for old in self._reported)
        )
        self._reported.extend(new)
        return new


def same(first: SeriesChange, other: SeriesChange) -> bool:
    """Whether two detections at different lengths of a series are the same change: they have the same direction and
    their ranges (for a drift, its whole extent) overlap."""
    same_direction = (first.shift.value > 0) == (other.shift.value > 0)
    return same_direction and first.low <= max(other.high, other.until) and other.low <= max(first.high, first.until)
