"""Where a rank's steps begin and end.

On a device, step N ends with the last compute kernel launched under marks up to N, and the last step at the
window's end. The launch's start chooses the mark; between marks, the next one; before the first, and for work
without a launch that has no predecessor on its stream, the part named `before`. On a CPU a step is from
one mark's start to the next one's. Ranks that share a clock share the bounds between steps: the step is over
when the last of them is done. A step that follows nothing in a device's window is partial: how long the
device idled before its first work is not in the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, Events
from trainyard.ledger import BEFORE, WINDOW
from trainyard.trace.classify.kernels import Classified


class StepPart(NamedTuple):
    """A stretch of a rank's window: `[start, stop)` ns, its label, and whether it is no full step."""

    label: str
    start: int
    stop: int
    partial: bool


def whole(events: Events) -> list[StepPart]:
    """The window as one part."""
    return [StepPart(WINDOW, *events.window, False)]


def ends(events: Events, classified: Classified, is_compute: I64) -> list[int]:
    """Where `before` ends and where each marked step ends, in order; len(marks) + 1 times."""
    marks = events.marks
    start, stop = events.window
    if not len(events.work):
        return [mark.start for mark in marks] + [stop]
    of_part = belongs(events, classified)
    last = np.full(len(marks) + 1, start, np.int64)
    np.maximum.at(last, of_part[is_compute], classified.stop[is_compute])
    return [*np.maximum.accumulate(last).tolist()[:-1], stop]


def parts(events: Events, ends: Sequence[int]) -> list[StepPart]:
    """The window cut at `ends` (of this rank or shared), without empty parts. Their lengths add up to the window."""
    start, stop = events.window
    bounds = [start, *(min(max(end, start), stop) for end in ends[:-1]), stop]
    labels = [BEFORE, *(mark.label for mark in events.marks)]
    stretches = [stretch for stretch in zip(labels, bounds, bounds[1:]) if stretch[2] > stretch[1]]
    if not stretches:  # work without length
        return whole(events)
    # A device's first stretch follows nothing: the idle time it began with lies before the window. And where ranks
    # share bounds, one whose window ends before a step does has not all of that step.
    cut_off = {BEFORE} | ({stretches[0][0]} if len(events.work) else set())
    cut_off |= {label for label, end in zip(labels, ends[:-1]) if end > stop}
    if events.cut_short:
        cut_off.add(stretches[-1][0])
    return [StepPart(*stretch, partial=stretch[0] in cut_off) for stretch in stretches]


def share(ends_of: Sequence[Sequence[int]], labels_of: Sequence[Sequence[str]]) -> list[list[int]]:
    """One bound for all aligned ranks at each inner end: the latest. Ranks whose marks differ keep their own."""
    if len({tuple(labels) for labels in labels_of}) != 1:
        return [list(ends) for ends in ends_of]
    shared = [max(column) for column in zip(*ends_of)]
    return [[*shared[:-1], ends[-1]] for ends in ends_of]


def belongs(events: Events, classified: Classified) -> I64:
    """For each device interval, 0 for `before` or 1 + the number of its mark."""
    starts = np.array([mark.start for mark in events.marks], np.int64)
    stops = np.array([mark.stop for mark in events.marks], np.int64)
    launcher = classified.launcher
    launched = launcher >= 0
    time = events.host.start[launcher]
    # The first mark that has not ended when the launch begins: the one around it or the next one.
    place = np.minimum(np.searchsorted(stops, time, "right"), len(stops) - 1) + 1
    place[time < starts[0]] = 0
    belongs = np.where(launched, place, -1)
    for stream in np.unique(events.work.stream):
        rows = np.flatnonzero(events.work.stream == stream)
        known = np.maximum.accumulate(np.where(belongs[rows] >= 0, np.arange(len(rows)), -1))
        belongs[rows] = np.where(known >= 0, belongs[rows][np.maximum(known, 0)], 0)
    return belongs


def in_full(parts: Sequence[StepPart], time: I64) -> NDArray[np.bool_]:
    """Whether each time lies in a full step; in any part where none is full."""
    bounds = np.array([parts[0].start, *(part.stop for part in parts)], np.int64)
    counts = np.array([not part.partial for part in parts])
    if not counts.any():
        counts[:] = True
    place = np.searchsorted(bounds, time, "right") - 1
    inside = (place >= 0) & (place < len(parts))
    return inside & counts[np.clip(place, 0, len(parts) - 1)]
