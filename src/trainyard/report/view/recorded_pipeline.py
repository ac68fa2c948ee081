"""The pipeline schedule that a trace with an annotation of each micro-batch shows, as a chart.

torch.distributed.pipelining annotates `Forward 3` and `Backward 3` (a rank's only stage), or `PP:2F3`: stage 2, forward
pass (F), full backward pass (B), gradients of inputs (I) or of weights (W), micro-batch 3.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from trainyard import units
from trainyard.events import I64, NOTE
from trainyard.report.view.charts import MOST_OPERATIONS, PipelineChart
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.measured_trace import MeasuredTrace

_ANNOTATION = re.compile(
    r"PP:(?P<stage>\d{1,5})(?P<kind>[FBIW])(?P<micro>\d{1,6})|(?P<pass>Forward|Backward) (?P<of>\d{1,6})"
)
_MOST_RANKS = 64
"""Ranks of a recorded schedule: each is loaded for it."""


class _Operation(NamedTuple):
    """An operation of a rank: kind, stage (-1 unknown), micro-batch, and the ns at which its work starts and stops."""

    kind: str
    stage: int
    micro: int
    start: int
    stop: int


def recorded_pipeline(measured: MeasuredTrace) -> PipelineChart | None:
    """The schedule of the first full step; None if the trace has no annotations of micro-batches.

    An operation lasts from the start of the first kernel that was launched during its annotation to the stop of the
    last one; on a CPU, as long as its annotation.
    """
    if not _annotated_names(measured.ranks[0]):
        return None
    first_ranks = [measured.ranks[index] for index in range(min(_MOST_RANKS, len(measured.ranks)))]
    rows = [(rank, operations) for rank in first_ranks if (operations := _operations_of_step(rank))]
    most_per_rank = max((len(operations) for _, operations in rows), default=1)
    shown = rows[: max(1, MOST_OPERATIONS // most_per_rank)]
    if not shown:
        return None
    first_ns = min(operation.start for _, operations in shown for operation in operations)
    more = len(measured.ranks) - len(first_ranks) + len(rows) - len(shown)
    left_out = f"; {units.counted(more, 'more rank')} not drawn" if more else ""
    flat = [(index, operation) for index, (_, operations) in enumerate(shown) for operation in operations]
    return PipelineChart(
        ranks=tuple(f"rank {rank.events.rank}" for rank, _ in shown),
        rank=tuple(index for index, _ in flat),
        kinds="".join(operation.kind for _, operation in flat),
        stage=tuple(operation.stage for _, operation in flat),
        micro=tuple(operation.micro for _, operation in flat),
        start=tuple(operation.start - first_ns for _, operation in flat),
        length=tuple(operation.stop - operation.start for _, operation in flat),
        unit="ns",
        title="Pipeline schedule, as recorded",
        note=f"first full step; each box lasts from the first to the last kernel launched in its annotation{left_out}",
    )


def _annotated_names(rank: RankTrace) -> dict[int, re.Match[str]]:
    """Number of a name in `events.names` -> the match, for names that annotate a micro-batch."""
    matches = ((number, _ANNOTATION.fullmatch(name)) for number, name in enumerate(rank.events.names))
    return {number: match for number, match in matches if match}


def _operations_of_step(rank: RankTrace) -> list[_Operation]:
    """The operations of a rank's first full step, in order of their annotations."""
    events, names = rank.events, _annotated_names(rank)
    host = events.host
    start_ns, stop_ns = _first_full_step(rank)
    is_annotation = (host.what == NOTE) & np.isin(host.name, list(names))
    rows = np.flatnonzero(is_annotation & (host.start >= start_ns) & (host.start < stop_ns))
    if not len(rows):
        return []
    rows = rows[np.argsort(host.start[rows], kind="stable")]
    starts, stops = host.start[rows].copy(), host.stop[rows].copy()
    if len(events.work):
        starts, stops = _work_bounds(rank, rows)
    operations: list[_Operation] = []
    for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist()):
        match = names[int(host.name[row])]
        if start < stop:
            kind = match["kind"] or match["pass"][0]
            micro, stage = match["micro"] or match["of"], match["stage"]
            operations.append(_Operation(kind, -1 if stage is None else int(stage), int(micro), start, stop))
    return operations


def _first_full_step(rank: RankTrace) -> tuple[int, int]:
    """(start, stop) in ns of the host's first full step; everything that was recorded if there are no step marks."""
    full = {part.label for part in rank.parts if not part.partial}
    marks = [mark for mark in rank.events.marks if mark.label in full]
    return (marks[0].start, marks[0].stop) if marks else (rank.events.span[0], rank.events.span[1] + 1)


def _work_bounds(rank: RankTrace, rows: I64) -> tuple[I64, I64]:
    """(first start, last stop) in ns of the compute launched during each of the host spans `rows`, which are sorted by
    start; the start is not before the stop for spans without any. Autograd launches from another thread, so that the
    time of a launch decides, not its thread."""
    classified, host = rank.classified, rank.events.host
    is_compute = np.append(rank.keys.kinds() == 0, False)[classified.key]
    work = np.flatnonzero(is_compute & (classified.launcher >= 0))
    launched_ns = host.start[classified.launcher[work]]
    span = np.searchsorted(host.start[rows], launched_ns, "right") - 1
    inside = (span >= 0) & (launched_ns < host.stop[rows][np.maximum(span, 0)])
    starts, stops = np.full(len(rows), np.iinfo(np.int64).max), np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(starts, span[inside], classified.start[work[inside]])
    np.maximum.at(stops, span[inside], classified.stop[work[inside]])
    return starts, stops
