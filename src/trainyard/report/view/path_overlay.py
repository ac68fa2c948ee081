"""The critical path of a measured trace on the lanes of its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from trainyard.events import I64
from trainyard.report.view.critical_path import LabelledPath, by_segment, label_segments, summarise_path
from trainyard.report.view.rank_lanes import lane_numbers
from trainyard.report.view.view import Lane, PathOverlay, Timeline
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.summarise_rank import group_short
from trainyard.trace.whatif.critical_path import StepPath, find_critical_path
from trainyard.trace.whatif.profile_ops import HOST
from trainyard.trace.whatif.replay import Replay

_MOST_SEGMENTS = 20_000
"""Segments of a page above which short neighbours are merged, which takes some 80 kB."""


class _Columns(NamedTuple):
    """Segments in order of time, in ns from the timeline's origin. `lane`: an index into the timeline's lanes, -1 for
    none; `share`: an index into the shares."""

    start: I64
    stop: I64
    lane: I64
    share: I64


def add_path(drawn: Timeline, replay: Replay | None) -> Timeline:
    """The timeline with the critical path. `drawn`: the timeline of a trace; `replay`: of the same trace, None if it is
    too large to be replayed for a page."""
    if replay is None:
        return drawn
    labelled = label_segments(find_critical_path(replay))
    result = summarise_path(replay, labelled)
    shares = {(share.resource, share.account): number for number, share in enumerate(result.shares)}
    segments = labelled.path.segments
    origin = _origin(replay, labelled.path)
    columns = _Columns(
        start=segments.start - origin,
        stop=segments.stop - origin,
        lane=_lanes_of_segments(labelled.path, replay.ranks, drawn.lanes),
        share=_shares_of_segments(labelled, shares),
    )
    exact = _merge_equal(columns)
    shown = _merge_short(exact, drawn.length_ns)
    path = PathOverlay(
        steps=result.steps,
        total_ns=result.total_ns,
        shares=tuple((share.account, share.label, share.resource, share.ns) for share in result.shares),
        ranks=tuple((item.rank, item.ns) for item in result.ranks),
        one_clock=result.one_clock,
        starts=shown.start.tolist(),
        lengths=(shown.stop - shown.start).tolist(),
        lane=shown.lane.tolist(),
        share=shown.share.tolist(),
        merged=len(exact.start) - len(shown.start),
    )
    return msgspec.structs.replace(drawn, path=path)


def _origin(replay: Replay, path: StepPath) -> int:
    """The time of the timeline's origin on the ranks of the path, ns."""
    ranks = replay.ranks if replay.aligned else [replay.ranks[index] for index in path.ranks]
    return min(rank.parts[0].start for rank in ranks)


def _shares_of_segments(labelled: LabelledPath, shares: dict[tuple[str, str], int]) -> I64:
    """The number of the share of each segment. `shares`: (resource, account) -> its number."""
    pairs = np.stack([labelled.resource, labelled.account])
    _, first, group = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    return np.array([shares[labelled.key(segment)] for segment in first.tolist()], np.int64)[group.reshape(-1)]


def _lanes_of_segments(path: StepPath, ranks: Sequence[RankTrace], lanes: Sequence[Lane]) -> I64:
    """The lane of each segment's op, -1 for none: that of its stream or, on a CPU, of its thread; of host work, the
    outermost lane of the thread that launches the next work of the path on the rank; the rank's ledger if that lane is
    not drawn."""
    ops = path.profile.ops
    rank_index, row = by_segment(ops.rank_index, path), by_segment(ops.row, path)
    is_host = by_segment(ops.role, path) == HOST
    result = np.full(len(row), -1, np.int64)
    for index in np.unique(rank_index[rank_index >= 0]).tolist():
        rank = ranks[index]
        own = [(number, lane) for number, lane in enumerate(lanes) if lane.rank == rank.events.rank]
        ledger = next(number for number, lane in own if lane.kind == "ledger")
        by_label = {lane.label: number for number, lane in own if lane.kind == "device"}
        lane_of_row, labels = lane_numbers(rank)
        streams = np.array([*(by_label.get(label, ledger) for label in labels), ledger], np.int64)
        mine = np.flatnonzero(rank_index == index)
        in_stream = mine[(row[mine] >= 0) & ~is_host[mine]]
        result[in_stream] = streams[lane_of_row[row[in_stream]]]
        on_host = mine[(row[mine] < 0) | is_host[mine]]
        if not len(rank.events.work):  # on a CPU, the host's work is the lane of the training thread
            result[on_host] = streams[0]
            continue
        following = np.append(in_stream, -1)[np.searchsorted(in_stream, on_host)]
        launcher = np.where(following >= 0, rank.classified.launcher[row[following]], -1)
        thread = np.where(launcher >= 0, np.append(rank.events.host.thread, -1)[launcher], rank.events.main)
        result[on_host] = _host_lanes(own, ledger, int(rank.events.host.thread.max(initial=0)))[thread]
    return result


def _host_lanes(lanes: Sequence[tuple[int, Lane]], ledger: int, last_thread: int) -> I64:
    """The number of the outermost drawn lane of each thread of a rank, that of its ledger for threads without one.
    `lanes`: those of the rank with their numbers."""
    result = np.full(last_thread + 1, ledger, np.int64)
    for number, lane in reversed(lanes):
        if lane.kind == "host" and len(lane.starts):
            result[lane.details["thread"][0] - 1] = number
    return result


def _merge_equal(columns: _Columns) -> _Columns:
    """Joins adjacent segments with the same lane and share."""
    opens = np.append(True, (columns.start[1:] != columns.stop[:-1]) | (columns.lane[1:] != columns.lane[:-1])
                      | (columns.share[1:] != columns.share[:-1]))[: len(columns.start)]  # fmt: skip
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(opens)) - 1
    return _Columns(columns.start[first], columns.stop[last], columns.lane[first], columns.share[first])


def _merge_short(columns: _Columns, length_ns: int) -> _Columns:
    """At most `_MOST_SEGMENTS` segments: short neighbours are merged into one with the lane and share of the longest.
    `length_ns`: of the timeline."""
    shortest_ns, first = 0, np.arange(len(columns.start))
    while len(first) > _MOST_SEGMENTS:
        shortest_ns = 2 * shortest_ns or max(1, length_ns // _MOST_SEGMENTS)
        first = group_short(columns.start, columns.stop, shortest_ns)
    if not shortest_ns:
        return columns
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(columns.start))))
    longest = np.lexsort((columns.start - columns.stop, group))[first]
    last = np.append(first[1:], len(group)) - 1
    return _Columns(columns.start[first], columns.stop[last], columns.lane[longest], columns.share[longest])
