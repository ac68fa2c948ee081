"""Start and end of a rank's steps.

On a device, step N ends with the last compute kernel launched under marks up to N, and the last step ends with the
window. Work belongs to the mark in which its launch starts; between marks, to the next one; before the first mark, and
for work without a launch that has no predecessor on its stream, to the part named `before`. On a CPU, a step lasts from
the start of one mark to the start of the next. Ranks that share a clock share the bounds between steps: a step ends
when the last rank has finished it. The first step in a device's window is partial, because the idle time before its
first work lies outside the window.
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
    """A part `[start, stop)` ns of a rank's window, with its label. `partial`: it is not a full step."""

    label: str
    start: int
    stop: int
    partial: bool


def whole_window(events: Events) -> list[StepPart]:
    """The window as one part."""
    return [StepPart(WINDOW, *events.window, False)]


def ends(events: Events, classified: Classified, is_compute: I64) -> list[int]:
    """The ends of `before` and of each marked step, in order; len(marks) + 1 times."""
    marks = events.marks
    start, stop = events.window
    if not len(events.work):
        return [mark.start for mark in marks] + [stop]
    part_of = part_of_interval(events, classified)
    last_compute_stop = np.full(len(marks) + 1, start, np.int64)
    np.maximum.at(last_compute_stop, part_of[is_compute], classified.stop[is_compute])
    return [*np.maximum.accumulate(last_compute_stop).tolist()[:-1], stop]


def parts(events: Events, ends: Sequence[int]) -> list[StepPart]:
    """The window cut at `ends` (of this rank or shared), without empty parts. Their lengths add up to the window."""
    start, stop = events.window
    bounds = [start, *(min(max(end, start), stop) for end in ends[:-1]), stop]
    labels = [BEFORE, *(mark.label for mark in events.marks)]
    stretches = [stretch for stretch in zip(labels, bounds, bounds[1:]) if stretch[2] > stretch[1]]
    if not stretches:  # all work has zero length
        return whole_window(events)
    # The idle time before a device's first work lies outside the window. And if ranks share bounds, a rank whose window
    # ends before the step does not contain all of it.
    cut_off = {BEFORE} | ({stretches[0][0]} if len(events.work) else set())
    cut_off |= {label for label, end in zip(labels, ends[:-1]) if end > stop}
    if events.cut_short:
        cut_off.add(stretches[-1][0])
    return [StepPart(*stretch, partial=stretch[0] in cut_off) for stretch in stretches]


def share_bounds(ends_of: Sequence[Sequence[int]], labels_of: Sequence[Sequence[str]]) -> list[list[int]]:
    """The latest of all aligned ranks' ends as the common bound between steps. Ranks keep their own bounds if their
    marks differ."""
    if len({tuple(labels) for labels in labels_of}) != 1:
        return [list(ends) for ends in ends_of]
    shared = [max(column) for column in zip(*ends_of)]
    return [[*shared[:-1], ends[-1]] for ends in ends_of]


def part_of_interval(events: Events, classified: Classified) -> I64:
    """The part of each device interval: 0 for `before`, 1 + the index of its mark otherwise."""
    starts = np.array([mark.start for mark in events.marks], np.int64)
    stops = np.array([mark.stop for mark in events.marks], np.int64)
    launcher = classified.launcher
    launched = launcher >= 0
    time = events.host.start[launcher]
    # The first mark that has not ended when the launch begins: the enclosing or the next one.
    part = np.minimum(np.searchsorted(stops, time, "right"), len(stops) - 1) + 1
    part[time < starts[0]] = 0
    interval_part = np.where(launched, part, -1)
    for stream in np.unique(events.work.stream):
        rows = np.flatnonzero(events.work.stream == stream)
        last_known_row = np.maximum.accumulate(np.where(interval_part[rows] >= 0, np.arange(len(rows)), -1))
        interval_part[rows] = np.where(last_known_row >= 0, interval_part[rows][np.maximum(last_known_row, 0)], 0)
    return interval_part


def in_full(parts: Sequence[StepPart], time: I64) -> NDArray[np.bool_]:
    """Whether each time lies in a full step; if there are none, in any part."""
    bounds = np.array([parts[0].start, *(part.stop for part in parts)], np.int64)
    is_counted = np.array([not part.partial for part in parts])
    if not is_counted.any():
        is_counted[:] = True
    index = np.searchsorted(bounds, time, "right") - 1
    in_window = (index >= 0) & (index < len(parts))
    return in_window & is_counted[np.clip(index, 0, len(parts) - 1)]
