"""Steps of a file without marks: chooses the evidence that divides the host's work into equal intervals.

A candidate is a kind of evidence with the times (cuts) at which its steps begin or end. Items are the ops of the
training thread, or launches of device work if it has no op. The intervals between the times of a candidate must hold
the ops of the typical interval; more ops are allowed, as an evaluation between two steps adds some. A second kind of
evidence that fits the first confirms it, and one that contradicts it makes it unreliable. Without reliable evidence the
whole window stays one part.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from trainyard.events import I64, Events, InferredSteps, StepMark
from trainyard.ledger import AFTER
from trainyard.trace.align.host_timeline import WorkItems, build_timeline, work_items
from trainyard.trace.align.kernel_period import periodic_kernels
from trainyard.trace.align.step_candidates import Candidate, host_candidates
from trainyard.trace.classify.context import Context

MIN_CONFIDENCE = 0.7
"""Confidence from which inferred steps are used."""
_PRIOR = {"optimizer": 0.99, "annotation": 0.96, "loader": 0.95, "kernels": 0.9}
"""Confidence in a candidate with many intervals that are all typical."""
_DOUBTFUL = 0.6
"""Factor of the confidence in kernels that may be layers."""
_CONTRADICTED = 0.7
"""Factor of the confidence for evidence that contradicts it."""
_COMPLETE = 0.9
"""Fraction of the typical ops from which an interval is complete."""
_SAME_NUMBER = 0.8
"""Fraction of intervals in which a second candidate must occur equally often to confirm the first."""
_MAX_NAMES, _MAX_INTERVALS = 256, 10_000
"""Names that are counted separately, and intervals that are compared."""
_NOTHING: I64 = np.zeros(0, np.int64)


def infer_steps(events: Events, context: Context) -> Events:
    """The events with inferred marks, if the file has none and the evidence is clear; unchanged if the file has marks.

    `Events.inferred` holds the evidence, also if it is not clear; None if there is no evidence. `Events.main` becomes
    the number of the training thread. `context`: op class and phase of each host row, and the rows of the passes.
    """
    if events.marks or not len(events.host) + len(events.work):
        return events
    timeline = build_timeline(events, context)
    events = replace(events, main=timeline.thread)
    items = _number_names(work_items(events, timeline.thread))
    # The most reliable kind of evidence comes first.
    ratings = [_rate(candidate, items) for candidate in host_candidates(events, context, timeline)]
    chosen = next((rating for rating in ratings if rating.confidence >= MIN_CONFIDENCE), None)
    if chosen is None and (candidate := periodic_kernels(events)):
        ratings.append(_rate(candidate, items))
        chosen = ratings[-1] if ratings[-1].confidence >= MIN_CONFIDENCE else None
    if chosen is None:
        doubts = "; ".join(f"{rating.candidate.text}, {100 * rating.confidence:.0f} % sure" for rating in ratings[:2])
        doubt = InferredSteps(source="", confidence=0.0, evidence=doubts) if doubts else None
        return replace(events, inferred=doubt)
    others = [rating for rating in ratings if rating is not chosen and rating.confidence >= MIN_CONFIDENCE]
    confidence, evidence = _compare_evidence(chosen, others)
    source = chosen.candidate.source if confidence >= MIN_CONFIDENCE else ""
    inferred = InferredSteps(
        source=source, confidence=round(confidence, 2), evidence=evidence, on_device=chosen.candidate.on_device
    )
    marks = _build_marks(events, items, chosen) if source else ()
    return replace(events, inferred=inferred, marks=marks)


class _Rating(NamedTuple):
    """A candidate, the confidence in it (0 to 1), and the typical number of items of each name in its intervals (by
    number of the name as in `_number_names`; empty if items were not counted)."""

    candidate: Candidate
    confidence: float
    typical: I64


def _rate(candidate: Candidate, items: WorkItems) -> _Rating:
    """Rates a candidate: (c + 1) / (n + 2) if c of its n intervals contain the typical items (Laplace's rule of
    succession), multiplied by the prior confidence in its source.

    0 if there are no intervals to compare. Those of repeated kernels are equal by construction and are not compared, so
    that c = n. `items`: with names as from `_number_names`.
    """
    cuts, prior = candidate.cuts, _PRIOR[candidate.source] * (_DOUBTFUL if candidate.is_doubtful else 1)
    intervals = len(cuts) - 1
    if candidate.source == "kernels":
        return _Rating(candidate, confidence=prior * (intervals + 1) / (intervals + 2), typical=_NOTHING)
    if intervals < 1 or not (counts := _count_names(items, cuts)).any():
        return _Rating(candidate, confidence=0.0, typical=_NOTHING)
    typical = np.median(counts, axis=0).astype(np.int64)
    # A line search evaluates its closure a different number of times in each step, so only the names count.
    is_optimizer = candidate.source == "optimizer"
    recall = _recall(counts.clip(0, 1), typical.clip(0, 1)) if is_optimizer else _recall(counts, typical)
    complete = int((recall >= _COMPLETE).sum())
    return _Rating(candidate, confidence=prior * (complete + 1) / (len(counts) + 2), typical=typical)


def _number_names(items: WorkItems) -> WorkItems:
    """The items with names numbered from 0, the most frequent first; rare names share the last number."""
    _, name_index, counts = np.unique(items.name, return_inverse=True, return_counts=True)
    number_of_index = np.empty(len(counts), np.int32)
    by_frequency = np.argsort(-counts, kind="stable")
    number_of_index[by_frequency] = np.minimum(np.arange(len(counts)), _MAX_NAMES - 1)
    return items._replace(name=number_of_index[name_index.reshape(-1)])


def _count_names(items: WorkItems, cuts: I64) -> I64:
    """Number of items of each name (columns, `_MAX_NAMES`) that start in each interval between two neighbouring cuts
    (rows), for the first `_MAX_INTERVALS` intervals. `cuts`: ns, ascending."""
    cuts = cuts[: _MAX_INTERVALS + 1]
    first, end = np.searchsorted(items.spans.start, [cuts[0], cuts[-1]]).tolist()
    interval = np.searchsorted(cuts, items.spans.start[first:end], "right") - 1
    cells = interval * _MAX_NAMES + items.name[first:end]  # position of (interval, name) in the flattened table
    return np.bincount(cells, minlength=(len(cuts) - 1) * _MAX_NAMES).reshape(-1, _MAX_NAMES)


def _recall(counts: I64, typical: I64) -> NDArray[np.float64]:
    """The fraction of the typical items that each interval holds, from 0 to 1; 1 if there are no typical items.
    `counts`: (intervals, names), `typical`: (names,), both numbers of items."""
    total = typical.sum()
    return np.minimum(counts, typical).sum(axis=1) / total if total else np.ones(len(counts))


def _compare_evidence(chosen: _Rating, others: list[_Rating]) -> tuple[float, str]:
    """(Confidence, evidence in words) of the chosen candidate, after a comparison with the first of the `others` from
    another source. `others`: candidates that alone would be used."""
    confidence, text = chosen.confidence, chosen.candidate.text
    for other in others:
        if other.candidate.source == chosen.candidate.source:
            continue
        if _fits(chosen.candidate.cuts, other.candidate.cuts) or _fits(other.candidate.cuts, chosen.candidate.cuts):
            text += f", confirmed by {other.candidate.text}"
        else:
            confidence *= _CONTRADICTED
            text += f", which {other.candidate.text} contradict"
        break
    return confidence, text


def _fits(coarse: I64, fine: I64) -> bool:
    """Whether most intervals between neighbouring times of `coarse` hold the same number of times of `fine`, at least
    one. Both are ascending, ns."""
    if len(coarse) < 2:
        return False
    counts = np.diff(np.searchsorted(fine, coarse))
    usual = int(np.bincount(counts).argmax())
    return usual > 0 and float((counts == usual).mean()) >= _SAME_NUMBER


def _build_marks(events: Events, items: WorkItems, chosen: _Rating) -> tuple[StepMark, ...]:
    """Marks of the intervals, labelled from 1, and of the incomplete interval after the last, which is not a step. An
    interval at an edge of the recording is a step if it holds the typical items."""
    candidate, typical = chosen.candidate, chosen.typical
    bounds: list[int] = candidate.cuts.tolist()
    _, last_ns = events.window if candidate.on_device else events.span
    if not candidate.on_device and (edge_ns := _complete_edge(items, candidate, typical, events.span)) is not None:
        bounds = [edge_ns, *bounds] if candidate.ends_step else [*bounds, edge_ns]
    marks = [
        StepMark(label=str(number), start=start, stop=stop)
        for number, (start, stop) in enumerate(pairwise(bounds), start=1)
    ]
    if bounds[-1] < last_ns:
        marks.append(StepMark(label=AFTER, start=bounds[-1], stop=last_ns, kind="cut"))
    return tuple(marks)


def _complete_edge(items: WorkItems, candidate: Candidate, typical: I64, span: tuple[int, int]) -> int | None:
    """The start (ns) of a complete step before the first cut, if the cuts end steps, else the stop of a complete step
    after the last one; None if that interval is incomplete. `typical`: number of items of each name in a step; `span`:
    (start, stop) of the recording."""
    if not typical.any():
        return None
    if candidate.ends_step:
        return _start_of_first_step(items, int(candidate.cuts[0]), typical)
    interval = np.array([candidate.cuts[-1], span[1] + 1], np.int64)
    if _recall(_count_names(items, interval), typical)[0] < _COMPLETE:
        return None
    # The step ends with the last of as many items as are typical.
    first, end = np.searchsorted(items.spans.start, interval).tolist()
    return int(items.spans.stop[min(end, first + int(typical.sum())) - 1])


def _start_of_first_step(items: WorkItems, cut: int, typical: I64) -> int | None:
    """The start (ns) of the step that ends at the first `cut`, ns: that of the last item from which on there are as
    many of the `typical` items as in the whole time before the cut; None if those are too few. Found by bisection. An
    optimizer's first step has more items than the others, so that their total number does not show the start."""

    def recall_from(index: int) -> float:
        """The fraction of the typical items from item `index` to the cut."""
        counts = _count_names(items, np.array([items.spans.start[index], cut], np.int64))
        return float(_recall(counts, typical)[0])

    low, high = 0, int(np.searchsorted(items.spans.start, cut)) - 1
    if high < 0 or (most := recall_from(low)) < _COMPLETE:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if recall_from(middle) >= most else (low, middle - 1)
    return int(items.spans.start[low])
