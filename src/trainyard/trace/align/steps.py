"""Start and end of a rank's steps.

On a device, step N ends with the last compute kernel launched under marks up to N, and the last step ends with the
window. Work belongs to the mark in which its launch starts; between marks, to the next one; before the first mark, and
for work without a launch that has no predecessor on its stream, to the part named `before`. On a CPU, a step lasts from
the start of one mark to the start of the next. Ranks that share a clock share the bounds between steps: a step ends
when the last rank has finished it. The first step in a device's window is partial, because the idle time before its
first work lies outside the window. Evaluations, checkpoints and pauses are marks as well, and their parts are not
steps; they do not end before their mark does, as the device may idle meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I64, TRAINING_KINDS, Events
from trainyard.ledger import BEFORE, WINDOW
from trainyard.trace.classify.kernels import Classified

BETWEEN_STEPS = tuple(kind for kind in words.PARTS if kind not in (*TRAINING_KINDS, "cut"))
"""Kinds of parts between training steps."""


class StepPart(NamedTuple):
    """A part `[start, stop)` ns of a rank's window, with its label. `partial`: it is not a full step; `kind`: a key of
    words.PARTS."""

    label: str
    start: int
    stop: int
    partial: bool
    kind: str = "step"


class PartName(NamedTuple):
    """Label and kind of a part of the window after `before`."""

    label: str
    kind: str


def whole_window(events: Events) -> list[StepPart]:
    """The window as one part."""
    return [StepPart(WINDOW, *events.window, False)]


def ends(events: Events, classified: Classified, is_compute: I64) -> list[int]:
    """The ends of `before` and of each mark, in order; len(marks) + 1 times."""
    marks = events.marks
    start, stop = events.window
    if not len(events.work):
        return [*np.maximum.accumulate([mark.start for mark in marks]).tolist(), stop]
    part_of = part_of_interval(events, classified)
    last_compute_stop = np.full(len(marks) + 1, start, np.int64)
    np.maximum.at(last_compute_stop, part_of[is_compute], classified.stop[is_compute])
    for part, mark in enumerate(marks, start=1):
        if mark.kind in BETWEEN_STEPS:
            last_compute_stop[part] = max(last_compute_stop[part], min(mark.stop, stop))
    return [*np.maximum.accumulate(last_compute_stop).tolist()[:-1], stop]


def parts(events: Events, ends: Sequence[int], names: Sequence[PartName]) -> list[StepPart]:
    """The window cut at `ends` (of this rank or shared), without empty parts. Their lengths add up to the window.
    `names`: of the part after each end but the last."""
    start, stop = events.window
    bounds = [start, *(min(max(end, start), stop) for end in ends[:-1]), stop]
    labels = [BEFORE, *(name.label for name in names)]
    stretches = [stretch for stretch in zip(labels, bounds, bounds[1:]) if stretch[2] > stretch[1]]
    if not stretches:  # all work has zero length
        return whole_window(events)
    kind_of = {BEFORE: "cut", **dict(names)}
    # The idle time before a device's first work lies outside the window. And if ranks share bounds, a rank whose window
    # ends before the step does not contain all of it.
    cut_off = {BEFORE} | ({stretches[0][0]} if len(events.work) else set())
    cut_off |= {label for label, end in zip(labels, ends[:-1]) if end > stop}
    if events.cut_short:
        cut_off.add(stretches[-1][0])
    kinds = [
        "cut" if kind_of[label] in TRAINING_KINDS and label in cut_off else kind_of[label] for label, _, _ in stretches
    ]
    return [StepPart(*stretch, partial=kind != "step", kind=kind) for stretch, kind in zip(stretches, kinds)]


def part_names(events: Events) -> list[PartName]:
    """The names of the rank's marks."""
    return [PartName(mark.label, mark.kind) for mark in events.marks]


def share_bounds(
    ends_of: Sequence[Sequence[int]], names_of: Sequence[Sequence[PartName]]
) -> tuple[list[list[int]], list[list[PartName]]]:
    """(ends, names) of each aligned rank with the latest of all ranks' ends as the common bound between parts. Ranks
    keep their own bounds if their steps differ. A part that only some ranks have, as a checkpoint that one rank writes,
    is a part of all of them: the others wait for it."""
    warm_up = {name.label for names in names_of for name in names if name.kind == "warmup"}
    names_of = [
        [name._replace(kind="warmup") if name.label in warm_up else name for name in names] for names in names_of
    ]
    steps_of = {tuple(name for name in names if name.kind not in BETWEEN_STEPS) for names in names_of}
    if len(steps_of) != 1:
        return [list(ends) for ends in ends_of], [list(names) for names in names_of]
    shared_names = _merge_names(names_of)
    columns = [_ends_of_names(ends, names, shared_names) for ends, names in zip(ends_of, names_of)]
    shared = np.maximum.accumulate(np.max(np.array(columns, np.int64), axis=0)).tolist() if shared_names else []
    return [[*shared, ends[-1]] for ends in ends_of], [shared_names] * len(ends_of)


def coincide(facts: Sequence[Events]) -> bool:
    """Whether aligned ranks' steps of the same label overlap. The file's own labels are taken as they are; inferred
    steps are numbered from each rank's first one, and a rank may have begun to record a step later."""
    if not any(events.inferred for events in facts):
        return True
    starts = [[mark.start for mark in events.marks if mark.is_training] for events in facts]
    stops = [[mark.stop for mark in events.marks if mark.is_training] for events in facts]
    if len({len(row) for row in starts}) != 1:
        return False
    return all(max(start) < min(stop) for start, stop in zip(zip(*starts), zip(*stops)))


def _merge_names(names_of: Sequence[Sequence[PartName]]) -> list[PartName]:
    """The names of all ranks in order: each rank's evaluations, checkpoints and pauses after the step that precedes
    them. The ranks have the same steps."""
    following: dict[PartName | None, list[PartName]] = {}
    for names in names_of:
        step: PartName | None = None
        following.setdefault(None, [])
        for name in names:
            if name.kind not in BETWEEN_STEPS:
                step = name
                following.setdefault(step, [])
            elif name not in following[step]:
                following[step].append(name)
    return [name for step, others in following.items() for name in ([step] if step else []) + others]


def _ends_of_names(ends: Sequence[int], names: Sequence[PartName], shared: Sequence[PartName]) -> list[int]:
    """The ends of `before` and of all shared names but the last, for a rank with these ends and names: a part that the
    rank does not have ends where the one before it does. The rank's last part ends with its window, so that its own end
    is unknown if other ranks have another part after it."""
    end_of = dict(zip(names[:-1], ends[1:-1]))
    own, last = [ends[0]], ends[0]
    for name in shared[:-1]:
        last = end_of.get(name, last)
        own.append(last)
    return own


def part_of_interval(events: Events, classified: Classified) -> I64:
    """The part of each device interval: 0 for `before`, 1 + the index of its mark otherwise."""
    starts = np.array([mark.start for mark in events.marks], np.int64)
    stops = np.array([mark.stop for mark in events.marks], np.int64)
    launcher = classified.launcher
    is_by_start = events.inferred is not None and events.inferred.on_device
    launched = np.ones(len(launcher), bool) if is_by_start else launcher >= 0
    time = classified.start if is_by_start else events.host.start[launcher]
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
