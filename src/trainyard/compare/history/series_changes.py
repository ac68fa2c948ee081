"""Changes detected in a series of one figure per run, commit or night: `DetectedChanges` and `SeriesChange`."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.compare.history.statistics.levels import Level


class SeriesChange(msgspec.Struct, frozen=True, kw_only=True):
    """Points are counted from 0. `at`: the first point of the new level, with the 95 % interval `low` to `high`;
    `until`: the first point after a drift or an excursion, `at` for a step.

    `shift`: after - before, in the series' unit. `strength`: significance of a step or drift in normal deviations
    (statistics/rank_statistics.py).
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
        """Whether the level has changed since."""
        return self.kind in ("step", "drift")

    @property
    def share(self) -> Level | None:
        """The shift relative to the level before; None if that is 0."""
        base = abs(self.before.value)
        shift = self.shift
        return Level(shift.value / base, shift.low / base, shift.high / base) if base else None


class DetectedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a series of `points` points, in order. `inflation`: variance of a long mean relative to that of
    independent values, due to autocorrelation; `critical`: the smallest strength of a split that counts as a change."""

    points: int
    changes: tuple[SeriesChange, ...]
    inflation: float
    critical: float

    @property
    def lasting(self) -> tuple[SeriesChange, ...]:
        return tuple(change for change in self.changes if change.lasting)
