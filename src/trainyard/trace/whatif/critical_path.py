"""Critical path of a measured trace: the chain of dependent ops that determines when the last step ends.

The path is followed backwards through the dependency graph of the replay, from the last op of the last full step to
the need that each op started after (see `dependency_graph`). Its segments adjoin, so they add up to the time of the
steps, to the nanosecond. Shortening an op that is not on the path does not shorten the steps; shortening an op on the
path shortens them by at most that much, as another chain may then determine the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import I64
from trainyard.trace.align.steps import StepPart
from trainyard.trace.whatif.dependency_graph import Graph
from trainyard.trace.whatif.profile_ops import Profile
from trainyard.trace.whatif.replay import Replay, full_parts

RUNNING, LATENCY, DELAY = range(3)
"""Values of `Segments.state`: the op runs; the minimum time between an op and the one that needs it (from a launch to
the start of its kernel); a delay before the op that no recorded dependency explains."""


class Segments(NamedTuple):
    """n adjoining stretches [`start`, `stop`) ns of the path, in order of time. `op`: op number in the profile, -1
    after the last op and before the first; `state`: RUNNING, LATENCY or DELAY."""

    op: I64
    start: I64
    stop: I64
    state: I64


class StepPath(NamedTuple):
    """The critical path through the full steps of a trace. `segments` lie within the steps, and add up to them;
    `total_ns`: the sum of the steps; `ranks`: indices (in the measurement) of the ranks that the path may cross, one
    if the ranks do not share a clock."""

    segments: Segments
    profile: Profile
    steps: int
    total_ns: int
    ranks: tuple[int, ...]


def find_critical_path(replay: Replay) -> StepPath:
    """The critical path through the full steps; if the trace has none, through the parts that its mean covers. If the
    ranks do not share a clock, the path is that of the rank with the longest steps."""
    measured = replay.measured
    candidates = measured.comparable_indices
    parts_of = {index: full_parts([replay.ranks[index].parts]) for index in candidates}
    if replay.aligned:
        chosen = max(candidates, key=lambda index: parts_of[index][-1].stop)
        ranks = tuple(range(len(replay.ranks)))
    else:
        chosen = max(candidates, key=lambda index: _mean_ns(parts_of[index]))
        ranks = (chosen,)
    parts = parts_of[chosen]
    last = _last_op(replay.profile, ranks, parts[-1].stop)
    whole = (
        trace_back(replay.profile.graph, last, parts[-1].stop) if last >= 0 else Segments(*np.empty((4, 0), np.int64))
    )
    return StepPath(
        segments=clip_to_parts(whole, parts),
        profile=replay.profile,
        steps=len(parts),
        total_ns=sum(part.stop - part.start for part in parts),
        ranks=ranks,
    )


def trace_back(graph: Graph, last: int, end: int) -> Segments:
    """The path that ends at `end` ns, from op `last`, which starts before, back to the base of the graph."""
    stop = graph.start + graph.length
    binding_row = _binding_rows(graph, stop)
    need, weight = graph.needs.need, graph.needs.weight
    rows: list[tuple[int, int, int, int]] = []  # (op, start, stop, state), the last first
    until = end

    def add(op: int, start_ns: int, state: int) -> None:
        """Adds [`start_ns`, `until`) to the path. An op that started before its need had stopped leaves nothing."""
        nonlocal until
        if start_ns < until:
            rows.append((op, start_ns, until, state))
            until = start_ns

    add(-1, int(stop[last]), DELAY)
    op = last
    while True:
        add(op, int(graph.start[op]), RUNNING)
        row = int(binding_row[op])
        if row < 0:
            add(op, graph.base, DELAY)
            break
        need_stop = int(stop[need[row]])
        add(op, need_stop + int(weight[row]), DELAY)
        add(op, need_stop, LATENCY)
        op = int(need[row])
    return Segments(*np.array(rows[::-1], np.int64).reshape(-1, 4).T)


def clip_to_parts(segments: Segments, parts: Sequence[StepPart]) -> Segments:
    """The segments cut to the parts of the window, which are disjoint. Parts that begin before the first segment gain a
    DELAY without an op, so that the result adds up to the parts."""
    clipped: list[Segments] = []
    for part in parts:
        start, stop = np.maximum(segments.start, part.start), np.minimum(segments.stop, part.stop)
        inside = start < stop
        columns = [segments.op[inside], start[inside], stop[inside], segments.state[inside]]
        first = int(columns[1][0]) if inside.any() else part.stop
        if first > part.start:
            lead = (-1, part.start, first, DELAY)
            columns = [np.concatenate([[value], column]) for value, column in zip(lead, columns)]
        clipped.append(Segments(*columns))
    return Segments(*(np.concatenate(column) for column in zip(*clipped)))


def _binding_rows(graph: Graph, stop: I64) -> I64:
    """For each op, the row of `graph.needs` that it started after: the one with the latest stop plus weight, of equal
    ones the one whose need stopped last; -1 for an op without needs. `stop`: by op, ns."""
    binding = np.full(len(graph.start), -1, np.int64)
    needs = graph.needs
    if not len(needs.op):
        return binding
    need_stop = stop[needs.need]
    # The rows of each op in ascending order of readiness: the last assignment of each op remains.
    order = np.lexsort((need_stop, need_stop + needs.weight))
    binding[needs.op[order]] = order
    return binding


def _last_op(profile: Profile, ranks: Sequence[int], end: int) -> int:
    """The op of these ranks (indices) that stops last, but no later than `end` ns; of equal ones device work before
    host work. The first op of the ranks if all stop later, -1 if they have none."""
    ops = profile.ops
    mine = np.flatnonzero(np.isin(ops.rank_index, ranks))
    ended = mine[ops.stop[mine] <= end]
    if not len(mine):
        return -1
    if not len(ended):
        return int(mine[np.argmin(ops.start[mine])])
    return int(ended[np.lexsort((ops.role[ended], ops.stop[ended]))[-1]])


def _mean_ns(parts: Sequence[StepPart]) -> float:
    return sum(part.stop - part.start for part in parts) / len(parts)
