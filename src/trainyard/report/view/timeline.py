"""The timeline of a page: lanes, each a row of the drawing, of slices, which are rectangles in a lane.

A rank has a lane for its ledger, for each of its streams (on a CPU: for the training thread and each thread that
communicates) and for the spans of its host threads by depth. The look of a slice is its place in the legend: the
account, or the kind of a host span, with a colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import words
from trainyard.report.view.rank_lanes import LaneBuilder, LaneRows
from trainyard.report.view.rank_summary import summarise_many
from trainyard.report.view.slice_details import number_collectives
from trainyard.report.view.step_bounds import own_steps, steps_by_rank
from trainyard.report.view.view import Lane, Timeline
from trainyard.trace.measured_trace import MeasuredTrace

_MOST_SLICES = 100_000
"""Slices of streams above which short neighbours are merged, and as many of ledgers."""
_HOST_SHARE = 0.6
"""Slices of host lanes, as a fraction of those of streams."""
_MOST_WITH_DETAILS = 8
"""Ranks whose slices have details and whose host threads are drawn."""


def timeline(measured: MeasuredTrace, max_slices: int = _MOST_SLICES) -> Timeline:
    """All ranks' slices from the start of the earliest window on, in ns. If there are more than `max_slices` slices,
    short neighbours are merged into one slice with the name and colour of the longest, as coarsely as needed. Of many
    ranks, most have one lane only, which shows the account that owns their time (`rank_summary.py`).

    Unaligned ranks each start at zero, since their clocks are not comparable.
    """
    aligned = measured.alignment.aligned
    many = summarise_many(measured)
    in_detail = many.in_detail if many else range(len(measured.ranks))
    ranks = [measured.ranks[index] for index in in_detail]  # loaded once; their rows stay on disk
    windows = many.windows if many else [(rank.parts[0].start, rank.parts[-1].stop) for rank in ranks]
    starts = [start for start, _ in windows]
    origins = [min(starts)] * len(starts) if aligned != "no" else starts
    length_ns = max(stop - origin for (_, stop), origin in zip(windows, origins))
    builder = LaneBuilder(measured.formulas)
    late = measured.mean.late
    by_lateness = sorted((rank.events.rank for rank in ranks), key=lambda rank: -late.get(rank, 0))
    with_details = set(by_lateness[:_MOST_WITH_DETAILS])
    rows = [
        lane
        for rank, index, collectives in zip(ranks, in_detail, number_collectives(ranks))
        for lane in builder.lanes(rank, origins[index], collectives, rank.events.rank in with_details)
    ]
    most = round(many.most_detail(max_slices) / (2 + _HOST_SHARE)) if many else max_slices
    limits = {"ledger": most, "device": most, "host": round(_HOST_SHARE * most)}
    lanes = _within_limits(rows, limits, length_ns)
    device_slices = sum(len(lane.starts) for lane in lanes if lane.kind == "device")
    events = many.intervals if many else sum(len(rank.classified.start) for rank in ranks)
    if many:
        room = max_slices - sum(len(lane.starts) for lane in lanes)
        summarised = many.lanes(origins, room, builder.name_number, builder.look_number)
        shown = {rank.events.rank for rank in ranks}
        lanes = sorted([*(lane for lane in summarised if lane.rank not in shown), *lanes], key=lambda lane: lane.rank)
    steps = steps_by_rank(measured.by_rank, [start - origin for start, origin in zip(starts, origins)])
    first = ranks[0].events.rank
    return Timeline(
        length_ns=length_ns,
        names=builder.names,
        legend=tuple(builder.legend),
        lanes=tuple(lanes),
        steps=steps[first],
        steps_of_ranks=own_steps(steps, first, [rank.events.rank for rank in ranks]),
        events=events,
        merged=sum(len(lane.begin) for lane in rows if lane.kind == "device") - device_slices,
        aligned=aligned,
        groups=many.groups if many else None,
        stacks=tuple(builder.stacks.nodes),
        span_names=builder.stacks.names,
        shapes=builder.shapes.texts,
        phases=tuple(words.PHASES),
    )


def _within_limits(rows: Sequence[LaneRows], limits: dict[str, int], length_ns: int) -> list[Lane]:
    """The lanes with short slices merged, so that the lanes of each kind have at most `limits[kind]` slices, or as many
    as there are lanes. `length_ns`: of the timeline."""
    shortest_ns = {
        kind: _shortest_ns([lane for lane in rows if lane.kind == kind], limit, length_ns)
        for kind, limit in limits.items()
    }
    return [lane.merge_short(shortest_ns[lane.kind]) for lane in rows]


def _shortest_ns(rows: Sequence[LaneRows], max_slices: int, length_ns: int) -> int:
    """The length in ns below which slices of these lanes are merged; 0 if there are few enough."""
    shortest_ns = 0
    while shortest_ns <= length_ns and sum(lane.count(shortest_ns) for lane in rows) > max_slices:
        shortest_ns = 2 * shortest_ns or max(1, length_ns // max_slices)
    return shortest_ns
