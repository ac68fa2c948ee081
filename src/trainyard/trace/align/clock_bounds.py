"""Bounds of clock offsets: no member leaves a symmetric collective before the last one has arrived.

This holds for every backend, also for gloo, whose members do not end together. With o_u the offset that brings clock u
to the common clock, each member's end e and each member's start s of one meeting satisfy s + o_v <= e + o_u. In
addition a rank may have compared its clock with another one by messages (`Events.clock_offset`). From all of these
together follow the lowest and the highest possible offset of each clock; the true one is between them, and the middle
is used.

If the same rank is late in every collective, the bounds are as far apart as it is late: then they do not show by how
much, and the caller rejects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import I64, ClockOffset
from trainyard.trace.align.matching import Meetings

_MAX_DRIFT_NS_PER_S = 100_000
"""Two clocks move apart by at most this much: ns per second, 100 parts per million."""
MAX_STAMP_NS = 2**61
"""Timestamps up to this value, and sums of two of them, fit into 64 bits; the year 2043 in ns since the epoch."""
_FAR = MAX_STAMP_NS
"""An offset that is not bounded."""


class Comparison(NamedTuple):
    """A measured offset: `clock` was compared with the clock `reference` (numbers of clocks)."""

    clock: int
    reference: int
    offset: ClockOffset


class OffsetBounds(NamedTuple):
    """`low`, `high` (ns): bounds of the offset of each clock, which is added to its timestamps; those of clock 0 are 0.
    Clocks without bounds have `low` -2**61 or `high` 2**61. `is_consistent`: some offsets satisfy all bounds."""

    low: I64
    high: I64
    is_consistent: bool

    @property
    def middle(self) -> I64:
        """The offsets (ns) half-way between the bounds; they satisfy every single bound as well."""
        return (self.low + self.high) // 2

    @property
    def unbounded(self) -> I64:
        """The numbers of the clocks without bounds."""
        return np.flatnonzero((self.low <= -_FAR) | (self.high >= _FAR))

    @property
    def uncertainty_ns(self) -> int:
        """By how much the middle may be wrong, at most, ns."""
        return int((self.high - self.low).max() + 1) // 2


def bound_offsets(
    met: Meetings, clock_of_rank: I64, middle: I64, comparisons: Sequence[Comparison] = ()
) -> OffsetBounds:
    """The bounds of the offsets of clocks, relative to clock 0.

    `met`: meetings (matched collectives); `clock_of_rank[i]`: number of the clock of rank index i; `middle`: of the
    recordings of each clock, ns, 0 for a clock without any; `comparisons`: measured offsets. The bounds are those at
    the middle, and allow for a drift of `_MAX_DRIFT_NS_PER_S` from there.
    """
    unit = clock_of_rank[met.rank_index]
    clocks = len(middle)
    drift_ns = np.abs(met.start - middle[unit]) * _MAX_DRIFT_NS_PER_S // 10**9
    compared = [
        (item.clock, item.reference, item.offset.low_ns - slack, item.offset.high_ns + slack)
        for item in comparisons
        for slack in [abs(item.offset.at_ns - int(middle[item.clock])) * _MAX_DRIFT_NS_PER_S // 10**9]
    ]
    high, high_ends = _tightest(met, unit, met.start - drift_ns, met.stop, clocks, compared)
    # The lowest offsets are the highest ones of mirrored time, in which starts and ends change places.
    mirrored = [(clock, reference, -high_ns, -low_ns) for clock, reference, low_ns, high_ns in compared]
    low, low_ends = _tightest(met, unit, -met.stop, drift_ns - met.start, clocks, mirrored)
    return OffsetBounds(low=-low, high=high, is_consistent=high_ends and low_ends and bool((-low <= high).all()))


def _tightest(
    met: Meetings, unit: I64, start: I64, stop: I64, clocks: int, compared: Sequence[tuple[int, int, int, int]]
) -> tuple[I64, bool]:
    """(highest offset of each clock relative to clock 0, whether the search ended; it does not if bounds contradict).

    `unit`: clock of each member of `met`; `start`, `stop`: times of each member (ns), in place of those in `met`;
    `compared`: (clock, reference, lowest, highest) offset of the clock minus that of its reference.
    """
    high = np.full(clocks, _FAR, np.int64)
    high[0] = 0
    for _ in range(2 * clocks + 2):
        before = high.copy()
        if met.size:
            reached = high[unit] < _FAR
            # The latest time, on the common clock, at which the last member of each meeting can have arrived.
            ends = np.where(reached, stop + np.where(reached, high[unit], 0), _FAR)
            arrived = np.minimum.reduceat(ends, met.first[:-1])[met.meeting]
            np.minimum.at(high, unit, np.where(arrived < _FAR, arrived - start, _FAR))
        for clock, reference, low_ns, high_ns in compared:
            high[clock] = min(high[clock], high[reference] + high_ns if high[reference] < _FAR else _FAR)
            high[reference] = min(high[reference], high[clock] - low_ns if high[clock] < _FAR else _FAR)
        if high[0] < 0:
            return high, False
        if (high == before).all():
            return high, True
    return high, False
