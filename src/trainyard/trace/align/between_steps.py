"""Work between training steps: evaluations, checkpoints and pauses, which are parts of their own; and warm-up.

A mark encloses everything from one step to the next. The training in it lasts from the first forward op whose gradient
is computed to the end of the optimizer's step; before and after it are gaps. A gap contains an evaluation if it has far
more matrix products than usual, at least half of those of a forward pass; a checkpoint if a span saves or loads one, or
if many tensors are copied to the host, as `torch.save` does where Python frames are not recorded; and a pause if it
lasts much longer than a step without a known cause. Work in most gaps is a part of the step: the forward pass of a
teacher, a checkpoint in every step. So is a wait for data, compilation or garbage collection, however long.

A piece is an interval of a gap with one of these kinds of work. A host row is an index into the columns of `HostSpans`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard.events import COPY, I64, NOTE, Events, StepMark
from trainyard.stats.medians import lower_median
from trainyard.trace.align.host_timeline import HostTimeline, Mask, Spans, build_timeline, outermost_ops, work_items
from trainyard.trace.classify.context import Context
from trainyard.vendors.kernel_names import copy_of

_MIN_MARKS = 3
_FORWARD_FRACTION = 0.5
"""Fraction of a forward pass's matrix products from which a gap contains an evaluation."""
_PAUSE_STEPS = 3
"""Length of a pause in median steps, at least."""
_MIN_STEPS, _WARM_UP = 5, 3
"""Number of steps from which the first can be warm-up, and its length in median steps, at least."""
_MIN_COPIES, _MIN_STATE_BYTES = 8, 1 << 20
"""Copies to the host in a gap, and their size in bytes, from which they are a model's state."""
_USUAL = 0.5
"""Fraction of the gaps from which their content is usual, and of a gap that known causes must cover to explain it."""


class _Piece(NamedTuple):
    """An interval of the host, [start, stop) ns, with its kind (a key of words.PARTS)."""

    start: int
    stop: int
    kind: str


class _Gaps(NamedTuple):
    """Gaps between training work: for each mark that trains, the one before its training work (even positions) and the
    one after it (odd positions). `start`, `stop`: ns; `mark`: position of the mark among the steps."""

    start: I64
    stop: I64
    mark: I64


def split_marks(events: Events, context: Context) -> Events:
    """The events with evaluations, checkpoints and pauses as marks of their own kind. Only a trace with backward passes
    in which most of at least three marks have training work has such marks."""
    steps = [mark for mark in events.marks if mark.kind == "step"]
    is_on_device = events.inferred is not None and events.inferred.on_device
    if len(steps) < _MIN_MARKS or is_on_device or not len(context.passes.backward):
        return events
    # `Spans.starting_in(start, stop)` counts the spans that start in each interval.
    timeline = build_timeline(events, context)
    start, stop = (np.array([getattr(mark, name) for mark in steps], np.int64) for name in ("start", "stop"))
    trains = timeline.training.starting_in(start, stop) > 0
    finishes = timeline.backward.starting_in(start, stop) + timeline.optimizer.starting_in(start, stop) > 0
    if 2 * int((trains & finishes).sum()) <= len(steps):
        return events
    checkpoints = _checkpoint_spans(events, context, timeline)
    whole = _kinds_without_training(events, timeline, start, stop, trains & finishes, checkpoints)
    gaps = _find_gaps(timeline, start, stop, trains & finishes)
    step_ns = int(np.median(stop - start))
    pieces = [*_evaluations(events, timeline, gaps, start, stop), *_checkpoints(gaps, checkpoints, len(steps))]
    for others in (_copied_states(events, gaps, step_ns), _pauses(events, context, timeline, gaps, step_ns)):
        explained = {gap for gap, _ in pieces}
        pieces += [(gap, piece) for gap, piece in others if gap not in explained]
    if not pieces and not whole:
        return events
    before: list[list[_Piece]] = [[] for _ in steps]
    after: list[list[_Piece]] = [[] for _ in steps]
    for gap, piece in pieces:
        (after if gap % 2 else before)[int(gaps.mark[gap])].append(piece)
    rest = [mark for mark in events.marks if mark.kind != "step"]
    return replace(events, marks=(*_rebuild(steps, before, after, whole), *rest))


def mark_warm_up(events: Events) -> Events:
    """The events with the first inferred steps as warm-up, as long as each takes much longer than the median step. With
    marks, the schedule of the profiler leaves the warm-up out."""
    lengths = [mark.stop - mark.start for mark in events.marks if mark.kind == "step"]
    if not events.inferred or len(lengths) < _MIN_STEPS:
        return events
    limit = _WARM_UP * lower_median(sorted(lengths))
    marks = list(events.marks)
    for index, mark in enumerate(marks):
        if mark.kind == "step" and mark.stop - mark.start < limit:
            break
        if mark.kind == "step":
            marks[index] = replace(mark, kind="warmup")
    return replace(events, marks=tuple(marks))


def _find_gaps(timeline: HostTimeline, start: I64, stop: I64, trains: Mask) -> _Gaps:
    """The gaps of the marks that train: before their first training work, and after their last. `start`, `stop`: of
    each mark, ns; `trains`: whether it has training work."""
    training = timeline.training
    mark = np.flatnonzero(trains)
    start, stop = start[mark], stop[mark]
    first = np.searchsorted(training.start, start)
    last = np.searchsorted(training.start, stop) - 1
    latest_stop = np.maximum.accumulate(training.stop)
    begin, end = training.start[first], np.clip(latest_stop[last], start, stop)
    gap_start, gap_stop = np.stack([start, end], axis=1), np.stack([begin, stop], axis=1)
    return _Gaps(gap_start.reshape(-1), gap_stop.reshape(-1), np.repeat(mark, 2))


def _evaluations(
    events: Events, timeline: HostTimeline, gaps: _Gaps, start: I64, stop: I64
) -> list[tuple[int, _Piece]]:
    """(Index of the gap, piece) of each gap with an evaluation.

    The evaluation lasts from the start of the gap to the end of the last op before the next batch is fetched or the
    gap ends. `start`, `stop`: of each step's mark, ns.
    """
    model = timeline.model  # the matrix products, attention and convolutions of the training thread
    products = model.starting_in(gaps.start, gaps.stop)  # number in each gap
    forward = Spans(model.start[timeline.in_forward], model.stop[timeline.in_forward])
    products_per_forward = float(np.median(forward.starting_in(start, stop)))
    is_evaluation = products - _usual_of_gaps(products) >= max(1.0, _FORWARD_FRACTION * products_per_forward)
    host = events.host
    is_batch = np.array([name.startswith("enumerate(DataLoader)") for name in events.names], bool)[host.name]
    fetch_start = host.start[(host.what == NOTE) & is_batch & (host.thread == timeline.thread)]
    pieces: list[tuple[int, _Piece]] = []
    ops = outermost_ops(events, timeline.thread) if is_evaluation.any() else np.empty(0, np.int64)  # host rows
    for gap in np.flatnonzero(is_evaluation).tolist():
        gap_start, gap_stop = int(gaps.start[gap]), int(gaps.stop[gap])
        last_product_stop = int(model.stop[np.searchsorted(model.start, gap_stop) - 1])
        next_fetch = np.searchsorted(fetch_start, last_product_stop)
        limit = min(gap_stop, int(fetch_start[next_fetch])) if next_fetch < len(fetch_start) else gap_stop
        last_op = ops[np.searchsorted(host.start[ops], limit) - 1]
        piece_stop = min(limit, max(last_product_stop, int(host.stop[last_op])))
        pieces.append((gap, _Piece(gap_start, piece_stop, "evaluation")))
    return pieces


def _usual_of_gaps(value: I64) -> NDArray[np.float64]:
    """The usual value of each gap, given the value of each: the median over the gaps before training work for even
    positions, over those after it for odd ones, as their contents differ."""
    return np.tile(np.median(value.reshape(-1, 2), axis=0), len(value) // 2)


def _checkpoint_spans(events: Events, context: Context, timeline: HostTimeline) -> Spans:
    """The outermost spans of the training thread that save or load a checkpoint."""
    is_checkpoint = np.array([*(cause.startswith("checkpoint/") for cause in context.causes), False], bool)
    host = events.host
    inside = is_checkpoint[context.cause]
    parent_inside = np.where(host.parent >= 0, inside[host.parent], False)
    rows = np.flatnonzero(inside & ~parent_inside & (host.thread == timeline.thread))
    return Spans(host.start[rows], host.stop[rows])


def _checkpoints(gaps: _Gaps, checkpoints: Spans, marks: int) -> list[tuple[int, _Piece]]:
    """(Index of the gap, piece) of each gap with a checkpoint; an empty list if most marks have one, as it is then a
    part of the step. `checkpoints`: spans of the host that save or load one; `marks`: number of steps."""
    pieces: list[tuple[int, _Piece]] = []
    for gap in np.flatnonzero(checkpoints.starting_in(gaps.start, gaps.stop)).tolist():
        first, end = np.searchsorted(checkpoints.start, [gaps.start[gap], gaps.stop[gap]]).tolist()
        stop = min(int(checkpoints.stop[first:end].max()), int(gaps.stop[gap]))
        pieces.append((gap, _Piece(int(checkpoints.start[first]), stop, "checkpoint")))
    return pieces if len({int(gaps.mark[gap]) for gap, _ in pieces}) <= _USUAL * marks else []


def _copied_states(events: Events, gaps: _Gaps, step_ns: int) -> list[tuple[int, _Piece]]:
    """(Index of the gap, piece) of each gap in which many more tensors than usual are copied to the host, if the gap is
    at least half as long as the median step, `step_ns`: a checkpoint, from the first copy to the end of the gap. An
    empty list if more than half as many gaps as there are training marks have such copies."""
    work, names = events.work, events.names
    # Rows of device work: copies from the device to the host (`d2h`) whose launch was recorded.
    rows = np.flatnonzero((work.what == COPY) & (work.call >= 0))
    to_host = [number for number in np.unique(work.name[rows]).tolist() if copy_of(names[number]) == "d2h"]
    rows = rows[np.isin(work.name[rows], to_host)]
    rows = rows[np.argsort(events.host.start[work.call[rows]], kind="stable")]
    launch_start = events.host.start[work.call[rows]]
    bytes_before = np.append(0, np.cumsum(np.maximum(work.bytes[rows], 0)))  # by all copies before each
    first, end = np.searchsorted(launch_start, gaps.start), np.searchsorted(launch_start, gaps.stop)
    copies, copied_bytes = end - first, bytes_before[end] - bytes_before[first]  # of each gap
    is_state = (copies - _usual_of_gaps(copies) >= _MIN_COPIES) & (copied_bytes >= _MIN_STATE_BYTES)
    is_state &= 2 * (gaps.stop - gaps.start) >= step_ns
    pieces = [
        (gap, _Piece(int(launch_start[first[gap]]), int(gaps.stop[gap]), "checkpoint"))
        for gap in np.flatnonzero(is_state).tolist()
    ]
    # Each training mark has two gaps.
    return pieces if len(pieces) <= _USUAL * len(gaps.start) / 2 else []


def _pauses(
    events: Events, context: Context, timeline: HostTimeline, gaps: _Gaps, step_ns: int
) -> list[tuple[int, _Piece]]:
    """(Index of the gap, piece) of each gap that lasts several steps longer than usual, without a known cause for most
    of it; the piece is the whole gap. An empty list if more than half as many gaps as there are training marks are like
    that. Gaps of the first mark are left out: they belong to the start of the recording.

    `context.cause`: by host row, why the host was busy, such as waiting for data or compiling; -1 if unknown.
    `step_ns`: length of the median step.
    """
    length = gaps.stop - gaps.start
    is_long = (length - _usual_of_gaps(length) >= _PAUSE_STEPS * step_ns) & (gaps.mark > 0)
    host = events.host
    has_cause = (context.cause >= 0) & (host.thread == timeline.thread)
    # Spans with a cause that are not directly inside another one.
    is_outermost = has_cause & ~np.where(host.parent >= 0, has_cause[host.parent], False)
    rows = np.flatnonzero(is_outermost)
    explained_ns = _covered_ns(host.start[rows], host.stop[rows], gaps)
    is_pause = is_long & (explained_ns < _USUAL * length)
    if is_pause.sum() > _USUAL * len(length) / 2:
        return []
    return [
        (gap, _Piece(int(gaps.start[gap]), int(gaps.stop[gap]), "pause")) for gap in np.flatnonzero(is_pause).tolist()
    ]


def _covered_ns(start: I64, stop: I64, gaps: _Gaps) -> I64:
    """ns of each gap that intervals [start, stop) cover, which are sorted and do not overlap: the total length of the
    intervals that touch the gap, less their parts before and after it."""
    if not len(start):
        return np.zeros(len(gaps.start), np.int64)
    stop = np.maximum.accumulate(stop)
    total = np.append(0, np.cumsum(stop - start))
    first, end = np.searchsorted(stop, gaps.start, "right"), np.searchsorted(start, gaps.stop, "left")
    end = np.maximum(first, end)
    before = np.maximum(gaps.start - start[np.minimum(first, len(start) - 1)], 0)
    after = np.maximum(stop[np.maximum(end - 1, 0)] - gaps.stop, 0)
    return np.where(end > first, total[end] - total[first] - before - after, 0)


def _kinds_without_training(
    events: Events, timeline: HostTimeline, start: I64, stop: I64, trains: Mask, checkpoints: Spans
) -> dict[int, str]:
    """Mark -> its kind, for marks without training work: an evaluation if it has matrix products, a checkpoint if it
    saves or loads one, a pause if it has no op and no launch. Other marks stay steps."""
    if trains.all():
        return {}
    products = timeline.model.starting_in(start, stop)
    saves = checkpoints.starting_in(start, stop)
    items = work_items(events, timeline.thread).spans.starting_in(start, stop)
    kinds = np.select([products > 0, saves > 0, items == 0], ["evaluation", "checkpoint", "pause"], "step")
    return {mark: str(kinds[mark]) for mark in np.flatnonzero(~trains & (kinds != "step")).tolist()}


def _rebuild(
    steps: list[StepMark], before: list[list[_Piece]], after: list[list[_Piece]], whole: dict[int, str]
) -> list[StepMark]:
    """The marks without the pieces `before` and `after` their training work, and those pieces as marks of their own,
    named after the step that precedes them. Time after the last piece of a mark belongs to the next mark. `before`,
    `after`: pieces by position of the step; `whole`: position of a step without training work -> its kind."""
    marks: list[StepMark] = []
    taken = {mark.label for mark in steps}
    last_label, next_start = "", steps[0].start
    for index, step in enumerate(steps):
        start = next_start
        for piece in _apart(before[index], start, step.stop):
            marks.append(_named(last_label, piece, taken))
            start = piece.stop
        stop = min((piece.start for piece in after[index]), default=step.stop)
        if index in whole:
            marks.append(_named(step.label, _Piece(start, stop, whole[index]), taken))
        else:
            marks.append(replace(step, start=start, stop=stop))
            last_label = step.label
        following = _apart(after[index], stop, step.stop)
        marks.extend(_named(last_label, piece, taken) for piece in following)
        if index + 1 < len(steps):
            next_start = following[-1].stop if following else steps[index + 1].start
    return marks


def _apart(pieces: list[_Piece], start: int, stop: int) -> list[_Piece]:
    """The pieces within [start, stop) in order of start, without overlaps; equal kinds in a row are one piece."""
    apart: list[_Piece] = []
    for piece in sorted(pieces):
        begin, end = max(piece.start, start), min(piece.stop, stop)
        if end <= begin:
            continue
        if apart and apart[-1].kind == piece.kind:
            apart[-1] = apart[-1]._replace(stop=end)
        else:
            apart.append(_Piece(begin, end, piece.kind))
        start = end
    return apart


def _named(label: str, piece: _Piece, taken: set[str]) -> StepMark:
    """The mark of a piece, named after the step before it: `7 evaluation`, `7 evaluation 2`. Adds the name to
    `taken`."""
    name = base = f"{label} {piece.kind}".strip()
    number = 1
    while name in taken:
        number += 1
        name = f"{base} {number}"
    taken.add(name)
    return StepMark(label=name, start=piece.start, stop=piece.stop, kind=piece.kind)
