"""Clock alignment from the common ends of symmetric collectives: an offset per clock, and a drift if one is visible.

For meeting m and a member on clock u, with e the timestamp of the member's end: e + offset_u is about common_m. Both
are estimated in turn as medians, which tolerate a few outliers, starting from a walk over the clocks that meet each
other. The lowest clock is the reference. All arithmetic is on integers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, DeviceWork, Events, HostSpans, StepMark
from trainyard.stats.medians import medians
from trainyard.trace.align.matching import Meetings

_SWEEPS = 20
_LEAST_SPAN, _MOST_SPAN = 10**9, 3600 * 10**9
_LEAST_ENDS = 9  # three to a third of the span
_MOST_DRIFT = 500_000  # ns a second; a crystal is within 100,000
_LIMIT = 2**62


class ClockCorrection(NamedTuple):
    """Maps a timestamp t to `t + offset + (t - origin) * drift // 10**9` ns; `drift` is in ns per second. The order of
    timestamps is preserved."""

    offset: int = 0
    drift: int = 0
    origin: int = 0

    def at(self, stamps: I64) -> I64:
        if not self.drift:
            return stamps + self.offset if self.offset else stamps
        return stamps + self.offset + (stamps - self.origin) * self.drift // 10**9

    def when(self, stamp: int) -> int:
        return stamp + self.offset + (stamp - self.origin) * self.drift // 10**9

    def covers(self, start: int, stop: int) -> bool:
        """Whether timestamps from `start` to `stop` are corrected without overflow of 64 bits."""
        return all(
            max(abs(self.when(stamp)), abs(stamp + self.offset), abs((stamp - self.origin) * self.drift)) < _LIMIT
            for stamp in (start, stop)
        )

    def corrected(self, events: Events) -> Events:
        """The events with all timestamps on the common clock."""
        if self == ClockCorrection():
            return events
        return msgspec.structs.replace(
            events,
            work=self._table(events.work),
            host=self._table(events.host),
            marks=self._marks(events.marks),
            device_marks=self._marks(events.device_marks),
            span=(self.when(events.span[0]), self.when(events.span[1])),
        )

    def _table(self, table: DeviceWork | HostSpans) -> DeviceWork | HostSpans:
        return msgspec.structs.replace(table, start=self.at(table.start), stop=self.at(table.stop))

    def _marks(self, marks: tuple[StepMark, ...]) -> tuple[StepMark, ...]:
        return tuple(
            msgspec.structs.replace(mark, start=self.when(mark.start), stop=self.when(mark.stop)) for mark in marks
        )


class ClockResidual(NamedTuple):
    """Distance (ns) of members' corrected ends from their collective's common end, over `collectives` collectives."""

    median: int
    p95: int
    collectives: int


class Solved(NamedTuple):
    """A clock for each unit; None if no chain of collectives connects the unit to the lowest one."""

    clocks: tuple[ClockCorrection | None, ...]
    residual: ClockResidual


def solve(met: Meetings, unit_of: I64) -> Solved:
    """Clocks of the units (hosts, or ranks whose host is unknown), from the ends in `met` (at least one).
    `unit_of[rank_index]`: each rank's unit."""
    unit = unit_of[met.rank_index]
    offset, known = _walk(met.stop, met.meeting, unit, int(unit_of.max()) + 1)
    origin = np.full(len(known), _LIMIT)
    np.minimum.at(origin, unit, met.stop)
    reached_ends = known[unit]
    ends = _Ends(met.stop[reached_ends], met.meeting[reached_ends], unit[reached_ends], origin)
    fit = _settle(ends, _Fit(offset, np.zeros_like(offset)), tilt=False)
    off = np.abs(_behind(ends, fit))
    if _LEAST_SPAN <= int(ends.time.max()) <= _MOST_SPAN:
        tilted = _settle(ends, fit, tilt=True)
        less = np.abs(_behind(ends, tilted))
        # A drift fits noise slightly better in any case, so it must reduce the residual by a quarter.
        if less.sum() < off.sum() and 4 * int(less.sum()) <= 3 * int(off.sum()):
            fit, off = tilted, less
    clocks = tuple(
        ClockCorrection(offset_ns, drift, int(start) if drift else 0) if reached else None
        for offset_ns, drift, start, reached in zip(fit.offset.tolist(), fit.drift.tolist(), origin, known)
    )
    ordered = np.sort(off)
    median, p95 = (int(ordered[-(-share * len(ordered) // 100) - 1]) for share in (50, 95))
    return Solved(clocks, ClockResidual(median, p95, len(np.unique(ends.meeting))))


class _Ends(NamedTuple):
    """k ends: `stamp` (ns), `meeting` and `unit` of each; `origin`: the earliest timestamp of each unit."""

    stamp: I64
    meeting: I64
    unit: I64
    origin: I64

    @property
    def time(self) -> I64:
        return self.stamp - self.origin[self.unit]


class _Fit(NamedTuple):
    """Offset (ns) and drift (ns per second) of each clock."""

    offset: I64
    drift: I64


def _walk(end: I64, meeting: I64, unit: I64, units: int) -> tuple[I64, NDArray[np.bool_]]:
    """Initial offsets, propagated from the lowest unit to the units it meets and on from those; and which units were
    reached."""
    offset, known = np.zeros(units, np.int64), np.zeros(units, bool)
    known[unit.min()] = True
    while True:
        seen = known[unit]
        common, met = medians(end[seen] + offset[unit[seen]], meeting[seen], int(meeting.max()) + 1)
        fresh = ~seen & met[meeting]
        if not fresh.any():
            return offset, known
        shift, solved = medians(common[meeting[fresh]] - end[fresh], unit[fresh], units)
        offset[solved], known[solved] = shift[solved], True


def _settle(ends: _Ends, fit: _Fit, tilt: bool) -> _Fit:
    """Refines offsets (and drifts if `tilt`) and common ends in turn, until they no longer change."""
    first, units = ends.unit.min(), len(ends.origin)
    for _ in range(_SWEEPS):
        behind, drift = _behind(ends, fit), fit.drift
        if tilt:
            slope, known = _slopes(ends.time, behind, ends.unit, units)
            drift = np.clip(drift + np.where(known, slope - slope[first], 0), -_MOST_DRIFT, _MOST_DRIFT)
            behind = _behind(ends, fit, ends.time * (drift - fit.drift)[ends.unit] // 10**9)
        shift, _ = medians(behind, ends.unit, units)
        moved = _Fit(fit.offset + shift - shift[first], drift)
        if all((new == old).all() for new, old in zip(moved, fit)):
            break
        fit = moved
    return fit


def _slopes(time: I64, behind: I64, unit: I64, units: int) -> tuple[I64, NDArray[np.bool_]]:
    """How many ns per second each unit falls behind, between the medians of its first and its last third of ends; and
    whether it has enough ends."""
    slopes, known = np.zeros(units, np.int64), np.zeros(units, bool)
    for unit_index in range(units):
        rows = np.flatnonzero(unit == unit_index)
        rows = rows[np.argsort(time[rows], kind="stable")]
        third = len(rows) // 3
        if len(rows) >= _LEAST_ENDS and time[rows[-1]] > time[rows[0]]:
            early, late = rows[:third], rows[-third:]
            rise = _middle(behind[late]) - _middle(behind[early])
            run = max(1, _middle(time[late]) - _middle(time[early]))
            slopes[unit_index], known[unit_index] = (2 * rise * 10**9 + run) // (2 * run), True
    return slopes, known


def _behind(ends: _Ends, fit: _Fit, more: I64 | int = 0) -> I64:
    """How far each corrected end (plus `more`) lies before the median of its meeting, ns."""
    on_clock = ends.stamp + fit.offset[ends.unit] + ends.time * fit.drift[ends.unit] // 10**9 + more
    common, _ = medians(on_clock, ends.meeting, int(ends.meeting.max()) + 1)
    return common[ends.meeting] - on_clock


def _middle(values: I64) -> int:
    return int(medians(values, np.zeros(len(values), np.int64), 1)[0][0])
