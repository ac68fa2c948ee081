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

# Units are clocks: hosts, or ranks whose host is unknown, numbered from 0. A meeting is a matched collective.
_MAX_ITERATIONS = 20
_MIN_SPAN_NS, _MAX_SPAN_NS = 10**9, 3600 * 10**9
_MIN_ENDS = 9  # three to a third of the span
_MAX_DRIFT_NS_PER_S = 500_000  # ns a second; a crystal is within 100,000
_MAX_TIMESTAMP = 2**62


class ClockCorrection(NamedTuple):
    """Maps a timestamp t to `t + offset + (t - origin) * drift // 10**9` ns; `drift` is in ns per second. The order of
    timestamps is preserved."""

    offset: int = 0
    drift: int = 0
    origin: int = 0

    def at(self, stamps: I64) -> I64:
        """Maps an array of timestamps, ns."""
        if not self.drift:
            return stamps + self.offset if self.offset else stamps
        return stamps + self.offset + (stamps - self.origin) * self.drift // 10**9

    def when(self, stamp: int) -> int:
        """Maps one timestamp, ns."""
        return stamp + self.offset + (stamp - self.origin) * self.drift // 10**9

    def covers(self, start: int, stop: int) -> bool:
        """Whether timestamps from `start` to `stop` are corrected without overflow of 64 bits."""
        return all(
            max(abs(self.when(stamp)), abs(stamp + self.offset), abs((stamp - self.origin) * self.drift))
            < _MAX_TIMESTAMP
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
            stacks=events.stacks and msgspec.structs.replace(events.stacks, time=self.at(events.stacks.time)),
            memory=events.memory and msgspec.structs.replace(events.memory, time=self.at(events.memory.time)),
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


class SolvedClocks(NamedTuple):
    """A clock for each unit; None if no chain of collectives connects the unit to the lowest one."""

    clocks: tuple[ClockCorrection | None, ...]
    residual: ClockResidual


def solve_clocks(met: Meetings, unit_of: I64) -> SolvedClocks:
    """Clocks of the units (hosts, or ranks whose host is unknown), from the ends in `met` (at least one).
    `unit_of[rank_index]`: each rank's unit."""
    unit = unit_of[met.rank_index]
    offset, is_reached_unit = _propagate_offsets(met.stop, met.meeting, unit, int(unit_of.max()) + 1)
    origin = np.full(len(is_reached_unit), _MAX_TIMESTAMP)
    np.minimum.at(origin, unit, met.stop)
    reached_ends = is_reached_unit[unit]
    ends = _Ends(
        stamp=met.stop[reached_ends], meeting=met.meeting[reached_ends], unit=unit[reached_ends], origin=origin
    )
    fit = _refine_fit(ends, _Fit(offset, np.zeros_like(offset)), with_drift=False)
    residual_ns = np.abs(_distance_to_median(ends, fit))
    if _MIN_SPAN_NS <= int(ends.time.max()) <= _MAX_SPAN_NS:
        drift_fit = _refine_fit(ends, fit, with_drift=True)
        drift_residual_ns = np.abs(_distance_to_median(ends, drift_fit))
        # A drift fits noise slightly better in any case, so it must reduce the residual by a quarter.
        is_less = drift_residual_ns.sum() < residual_ns.sum()
        if is_less and 4 * int(drift_residual_ns.sum()) <= 3 * int(residual_ns.sum()):
            fit, residual_ns = drift_fit, drift_residual_ns
    clocks = tuple(
        ClockCorrection(offset_ns, drift, int(start) if drift else 0) if reached else None
        for offset_ns, drift, start, reached in zip(fit.offset.tolist(), fit.drift.tolist(), origin, is_reached_unit)
    )
    ordered = np.sort(residual_ns)
    # Nearest rank: the element at ceil(share * n / 100) - 1.
    median, p95 = (int(ordered[-(-share * len(ordered) // 100) - 1]) for share in (50, 95))
    return SolvedClocks(clocks, ClockResidual(median, p95, len(np.unique(ends.meeting))))


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
    """`offset` (ns) and `drift` (ns per second) of each clock unit, one entry per unit."""

    offset: I64
    drift: I64


def _propagate_offsets(end: I64, meeting: I64, unit: I64, unit_count: int) -> tuple[I64, NDArray[np.bool_]]:
    """Returns (initial offset of each unit, ns; whether each unit was reached). Offsets are propagated from the lowest
    unit, which has 0, to the units it meets and on from those. `end`, `meeting`, `unit`: timestamp (ns), number of the
    meeting and of the unit of each member's end."""
    offset, reached = np.zeros(unit_count, np.int64), np.zeros(unit_count, bool)
    reached[unit.min()] = True
    while True:
        is_reached = reached[unit]
        # `medians` returns the median of each group, and whether the group has values.
        common, met = medians(end[is_reached] + offset[unit[is_reached]], meeting[is_reached], int(meeting.max()) + 1)
        newly_reached = ~is_reached & met[meeting]
        if not newly_reached.any():
            return offset, reached
        shift, solved = medians(common[meeting[newly_reached]] - end[newly_reached], unit[newly_reached], unit_count)
        offset[solved], reached[solved] = shift[solved], True


def _refine_fit(ends: _Ends, fit: _Fit, with_drift: bool) -> _Fit:
    """Refines offsets (and drifts if `with_drift`) and common ends in turn, until they no longer change or for at most
    `_MAX_ITERATIONS`. The lowest unit keeps its offset and drift."""
    reference, unit_count = ends.unit.min(), len(ends.origin)
    for _ in range(_MAX_ITERATIONS):
        behind, drift = _distance_to_median(ends, fit), fit.drift
        if with_drift:
            slope, has_slope = _estimate_drifts(ends.time, behind, ends.unit, unit_count)
            drift = np.clip(
                drift + np.where(has_slope, slope - slope[reference], 0), -_MAX_DRIFT_NS_PER_S, _MAX_DRIFT_NS_PER_S
            )
            behind = _distance_to_median(ends, fit, ends.time * (drift - fit.drift)[ends.unit] // 10**9)
        shift, _ = medians(behind, ends.unit, unit_count)
        moved = _Fit(fit.offset + shift - shift[reference], drift)
        if all((new == old).all() for new, old in zip(moved, fit)):
            break
        fit = moved
    return fit


def _estimate_drifts(time: I64, distance_ns: I64, unit: I64, unit_count: int) -> tuple[I64, NDArray[np.bool_]]:
    """Returns (ns per second by which each unit falls behind; whether it has enough ends). The slope is that between
    the medians of the first and of the last third of its ends. `time`: ns since the unit's first end; `distance_ns`: ns
    by which each end lies before its meeting's median; `unit`: of each end."""
    slopes, has_enough = np.zeros(unit_count, np.int64), np.zeros(unit_count, bool)
    for unit_index in range(unit_count):
        rows = np.flatnonzero(unit == unit_index)
        rows = rows[np.argsort(time[rows], kind="stable")]
        third = len(rows) // 3
        if len(rows) >= _MIN_ENDS and time[rows[-1]] > time[rows[0]]:
            early, late = rows[:third], rows[-third:]
            rise_ns = _median(distance_ns[late]) - _median(distance_ns[early])
            run_ns = max(1, _median(time[late]) - _median(time[early]))
            slopes[unit_index], has_enough[unit_index] = (2 * rise_ns * 10**9 + run_ns) // (2 * run_ns), True
    return slopes, has_enough


def _distance_to_median(ends: _Ends, fit: _Fit, extra_ns: I64 | int = 0) -> I64:
    """ns by which each corrected end (plus `extra_ns`) lies before the median of its meeting."""
    on_clock = ends.stamp + fit.offset[ends.unit] + ends.time * fit.drift[ends.unit] // 10**9 + extra_ns
    common, _ = medians(on_clock, ends.meeting, int(ends.meeting.max()) + 1)
    return common[ends.meeting] - on_clock


def _median(values: I64) -> int:
    return int(medians(values, np.zeros(len(values), np.int64), 1)[0][0])
