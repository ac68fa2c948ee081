"""What is seen in a series of one figure a run, or a commit, or a night: `DetectedChanges`, and its changes."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.compare.history.statistics.levels import Level


class SeriesChange(msgspec.Struct, frozen=True, kw_only=True):
    """Points are counted from 0. `at` is the first one of the new level, 95 % sure to lie in `low` to `high`; of a
    drift or an excursion `until` is the first point after it, of a step it is `at`.

    `shift`: after - before, in the series' unit. `strength`: of a step or drift, as of a normal (segment.py).
    """

    kind: Literal["step", "drift", "excursion", "spike"]
    at: int
    until: int
    low: int
    high: int
    before: Level
    after: Level
    shift: Level
    strength: float = 0.0

    @property
    def lasting(self) -> bool:
        """Whether the level is another since."""
        return self.kind in ("step", "drift")

    @property
    def share(self) -> Level | None:
        """The shift as a share of the level before; None where that is 0."""
        of = abs(self.before.value)
        return Level(*(part / of for part in self.shift)) if of else None


class DetectedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Of a series of `points`: its changes in order, what autocorrelation widened its noise by (variance of a long mean
    over that of independent values), and how strong a split had to be."""

    points: int
    changes: tuple[SeriesChange, ...]
    inflation: float
    critical: float

    @property
    def lasting(self) -> tuple[SeriesChange, ...]:
        return tuple(change for change in self.changes if change.lasting)
