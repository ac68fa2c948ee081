"""Points as they come, and one alert a change."""

from __future__ import annotations

from collections.abc import Iterable

from trainyard.compare.history.detect_changes import checked, seen
from trainyard.compare.history.series_changes import SeriesChange
from trainyard.compare.history.statistics.critical_values import FEWEST
from trainyard.compare.history.statistics.split_scan import Scan

STRICTER = 0.8
"""Of 200 points of noise a watch then alerts in less than one case of a hundred (validation/history_noise.py)."""


class OnlineDetector:
    """Sees what `detect` sees of the whole, a little later: it looks after every point, and is as much stricter.

    A point costs the stretches that end at it, which grow with the series: a few ms at 200 points, some tens at 10,000.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._scan = Scan()
        self._told: list[SeriesChange] = []
        self.add(values)

    def add(self, values: Iterable[float]) -> tuple[SeriesChange, ...]:
        """Steps and drifts that were not told of before. Raises `BadInput` for a value that is no number, and takes
        none then."""
        self._scan.extend(checked(values))
        if self._scan.values.size < FEWEST:
            return ()
        new = tuple(
            change for change in seen(self._scan, STRICTER).lasting if not any(same(change, old) for old in self._told)
        )
        self._told.extend(new)
        return new


def same(one: SeriesChange, other: SeriesChange) -> bool:
    """Whether two sights of a series, one some points later, are of one change: in one direction, and their ranges (of
    a drift all of it) meet."""
    alike = (one.shift.value > 0) == (other.shift.value > 0)
    return alike and one.low <= max(other.high, other.until) and other.low <= max(one.high, one.until)
