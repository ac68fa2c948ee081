"""Start and end of a rank's steps.

On a device, step N ends with the last compute kernel launched under marks up to N, and the last step ends with the
window. Work belongs to the mark in which its launch starts; between marks, to the next one; before the first mark, and
for work without a launch that has no predecessor on its stream, to the part named `before`. On a CPU, a step lasts from
the start of one mark to the start of the next. Ranks that share a clock share the bounds between steps: a step ends
when the last rank has finished it. The first step in a device's window is partial, because the idle time before its
first work lies outside the window. Evaluations, checkpoints and pauses are marks as well, and their parts are not
steps; they do not end before their mark does, as the device may idle meanwhile.

A mark is a step annotation of the host, or an inferred step. The window is the time that is divided into parts: of a
device's recorded work; in a file without device work, of its marks, or of the recording if they are inferred. An
interval is a row of `Classified`: of device work, or of the spans of a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I64, TRAINING_KINDS, Events
from trainyard.ledger import AFTER, BEFORE, WINDOW
from trainyard.trace.classify.kernels import Classified

Mask = NDArray[np.bool_]
BETWEEN_STEPS = tuple(kind for kind in words.PARTS if kind not in (*TRAINING_KINDS, "cut"))
"""Kinds of parts between training steps."""


class StepPart(NamedTuple):
    """A part `[start, stop)` ns of a rank's window, with its label. `partial`: it is not a full step, so that means
    leave it out; `kind`: a key of words.PARTS."""

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
    """The window as one part, which counts as a full step."""
    start, stop = events.window
    return [StepPart(label=WINDOW, start=start, stop=stop, partial=False)]


def ends(events: Events, classified: Classified, is_compute: NDArray[np.bool_]) -> list[int]:
    """The times (ns) at which the part `before` and the part of each mark end, in order; len(marks) + 1 times, the last
    of which is the end of the window. `is_compute`: whether each interval of `classified` is compute."""
    marks = events.marks
    start, stop = events.window
    if not len(events.work):
        return [*np.maximum.accumulate([mark.start for mark in marks]).tolist(), stop]
    interval_part = part_of_interval(events, classified)
    last_compute_stop = np.full(len(marks) + 1, start, np.int64)
    np.maximum.at(last_compute_stop, interval_part[is_compute], classified.stop[is_compute])
    for part, mark in enumerate(marks, start=1):
        if mark.kind in BETWEEN_STEPS:
            last_compute_stop[part] = max(last_compute_stop[part], min(mark.stop, stop))
    return [*np.maximum.accumulate(last_compute_stop).tolist()[:-1], stop]


def parts(events: Events, ends: Sequence[int], names: Sequence[PartName]) -> list[StepPart]:
    """The window, cut into `before` and the parts of the marks, without empty parts; their lengths add up to it.

    `ends`: the end of each part, ns, as from `ends` or `share_bounds`; the last is replaced by the window's. `names`:
    of the parts after `before`. A training step of which a part is missing gets the kind `cut`.
    """
    start, stop = events.window
    bounds = [start, *(min(max(end, start), stop) for end in ends[:-1]), stop]
    labels = [BEFORE, *(name.label for name in names)]
    # (label, start, stop) of each part.
    intervals = [interval for interval in zip(labels, bounds, bounds[1:]) if interval[2] > interval[1]]
    if not intervals:  # all work has zero length
        return whole_window(events)
    kind_of_label = {BEFORE: "cut", **dict(names)}
    # The idle time before a device's first work lies outside the window. And if ranks share bounds, a rank whose window
    # ends before the step does not contain all of it.
    incomplete = {BEFORE} | ({intervals[0][0]} if len(events.work) else set())
    incomplete |= {label for label, end in zip(labels, ends[:-1]) if end > stop}
    if events.cut_short:
        incomplete.add(intervals[-1][0])
    kinds = [
        "cut" if kind_of_label[label] in TRAINING_KINDS and label in incomplete else kind_of_label[label]
        for label, _, _ in intervals
    ]
    return [StepPart(*interval, partial=kind != "step", kind=kind) for interval, kind in zip(intervals, kinds)]


def part_names(events: Events) -> list[PartName]:
    """The names of the rank's marks."""
    return [PartName(mark.label, mark.kind) for mark in events.marks]


def share_bounds(
    ends_of: Sequence[Sequence[int]], names_of: Sequence[Sequence[PartName]]
) -> tuple[list[list[int]], list[list[PartName]]]:
    """(Ends, names) of the parts of each rank, with the latest of all ranks' ends as the common bound between parts.

    `ends_of[i]`: the ends of rank index i as from `ends`, on a clock that all ranks share; `names_of[i]`: as from
    `part_names`. Ranks keep their own ends if their steps differ. A part that only some ranks have, as a checkpoint
    that one rank writes, is a part of all of them: the others wait for it. A step that is warm-up on one rank is
    warm-up on all.
    """
    warm_up_labels = {name.label for names in names_of for name in names if name.kind == "warmup"}
    names_of = [
        [name._replace(kind="warmup") if name.label in warm_up_labels else name for name in names] for names in names_of
    ]
    distinct_steps = {tuple(name for name in names if name.kind not in BETWEEN_STEPS) for names in names_of}
    if len(distinct_steps) != 1:
        return [list(ends) for ends in ends_of], [list(names) for names in names_of]
    shared_names = _merge_names(names_of)
    # Rows: ranks; columns: `before` and all shared names but the last.
    end_table = [_ends_of_names(ends, names, shared_names) for ends, names in zip(ends_of, names_of)]
    shared_ends = np.maximum.accumulate(np.max(np.array(end_table, np.int64), axis=0)).tolist() if shared_names else []
    return [[*shared_ends, ends[-1]] for ends in ends_of], [shared_names] * len(ends_of)


def coincide(facts: Sequence[Events]) -> bool:
    """Whether the steps of the same label overlap in time on all ranks. `facts`: the ranks' events, on a common clock;
    only their marks are used.

    True if all labels are the files' own. Inferred steps are numbered from the first one of each rank, and a rank may
    have begun to record a step later; False if their numbers of steps differ.
    """
    if not any(events.inferred for events in facts):
        return True
    starts = [[mark.start for mark in events.marks if mark.is_training] for events in facts]
    stops = [[mark.stop for mark in events.marks if mark.is_training] for events in facts]
    if len({len(row) for row in starts}) != 1:
        return False
    return all(max(start) < min(stop) for start, stop in zip(zip(*starts), zip(*stops)))


def _merge_names(names_of: Sequence[Sequence[PartName]]) -> list[PartName]:
    """The names of all ranks in order: each rank's evaluations, checkpoints and pauses after the step that precedes
    them. `names_of[i]`: those of rank index i; the ranks have the same steps."""
    # Step, None for the time before the first one -> the names of the parts after it that are not steps.
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
    """The ends (ns) of `before` and of all `shared` names but the last, for a rank whose parts have the given `ends`
    and `names`. A part that the rank does not have gets the end of the one before it. The rank's last part ends with
    its window, so that its own end is unknown if other ranks have another part after it."""
    end_of_name = dict(zip(names[:-1], ends[1:-1]))
    shared_ends, latest_end = [ends[0]], ends[0]
    for name in shared[:-1]:
        latest_end = end_of_name.get(name, latest_end)
        shared_ends.append(latest_end)
    return shared_ends


def part_of_interval(events: Events, classified: Classified) -> I64:
    """The part of each device interval (n rows of `events.work`): 0 for `before`, 1 + the index of its mark otherwise.

    The launch decides; an interval without a recorded launch has the part of its predecessor on the stream. If steps
    were inferred from device work, the start of the interval decides.
    """
    starts = np.array([mark.start for mark in events.marks], np.int64)
    stops = np.array([mark.stop for mark in events.marks], np.int64)
    launcher = classified.launcher  # host row of the launch, -1 if not recorded
    is_by_start = events.inferred is not None and events.inferred.on_device
    has_time = np.ones(len(launcher), bool) if is_by_start else launcher >= 0
    time = classified.start if is_by_start else events.host.start[launcher]
    # The first mark that has not ended when the launch begins: the enclosing or the next one.
    part = np.minimum(np.searchsorted(stops, time, "right"), len(stops) - 1) + 1
    part[time < starts[0]] = 0
    interval_part = np.where(has_time, part, -1)
    for stream in np.unique(events.work.stream):
        rows = np.flatnonzero(events.work.stream == stream)
        # Position in `rows` of the last interval up to each whose part is known, -1 if there is none yet.
        last_known = np.maximum.accumulate(np.where(interval_part[rows] >= 0, np.arange(len(rows)), -1))
        interval_part[rows] = np.where(last_known >= 0, interval_part[rows][np.maximum(last_known, 0)], 0)
    return interval_part


def select_averaged(parts_by_rank: Sequence[Sequence[StepPart]]) -> list[Mask]:
    """A mask over the parts of each rank: those that the mean covers. These are full steps; if no rank has any, steps
    that are cut off; if there are none either, all parts."""
    full = [np.array([part.kind == "step" for part in parts], bool) for parts in parts_by_rank]
    if any(mask.any() for mask in full):
        return full
    cut_off = [
        np.array([part.kind == "cut" and part.label not in (BEFORE, AFTER) for part in parts], bool)
        for parts in parts_by_rank
    ]
    return cut_off if any(mask.any() for mask in cut_off) else [np.ones(len(parts), bool) for parts in parts_by_rank]


def in_full(parts: Sequence[StepPart], time: I64) -> Mask:
    """Whether each time, ns, lies in a full step; if no part is a full step, in any part. `parts`: of one rank, in
    order, without gaps between them."""
    is_full = np.array([not part.partial for part in parts])
    return in_parts(parts, is_full if is_full.any() else np.ones(len(parts), bool), time)


def in_parts(parts: Sequence[StepPart], is_selected: Mask, time: I64) -> Mask:
    """Whether each time, ns, lies in a selected part. `parts`: as for `in_full`; `is_selected`: mask over them."""
    bounds = np.array([parts[0].start, *(part.stop for part in parts)], np.int64)
    index = np.searchsorted(bounds, time, "right") - 1
    in_window = (index >= 0) & (index < len(parts))
    return in_window & is_selected[np.clip(index, 0, len(parts) - 1)]
