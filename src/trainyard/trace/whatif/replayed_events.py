"""Events as they would have been recorded with the start and stop times of a replay.

Ops are the nodes of the dependency graph (`Ops` in `profile_ops.py`): device work, and stretches of a host's time.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from trainyard.events import I32, I64, DeviceWork, Events, HostSpans
from trainyard.trace.whatif.profile_ops import Profile

_Table = TypeVar("_Table", DeviceWork, HostSpans)


def replay_events(events: Events, rank_index: int, profile: Profile, start: I64, stop: I64) -> Events:
    """The rank's events at replayed times, with both tables sorted by start again.

    `start`, `stop`: replayed times of all ops of `profile` in ns. Device work has the times of its ops. Host spans
    stretch and shrink with the ops they overlap; spans outside all ops move with the nearest one.
    """
    host, work = events.host, events.work
    begin, end = profile.begin[rank_index], profile.end[rank_index]
    clock = ReplayClock(profile, profile.host[rank_index], start, stop)
    host = msgspec.structs.replace(host, start=clock.at(host.start), stop=clock.at(host.stop))
    if len(work):
        work = msgspec.structs.replace(work, start=start[begin], stop=stop[end])
    else:  # on a CPU, collectives are host spans with ops of their own
        spans = np.flatnonzero(begin >= 0)
        rows = profile.launcher[rank_index][spans]
        host.start[rows], host.stop[rows] = start[begin[spans]], stop[end[spans]]
    host = msgspec.structs.replace(host, parent=_open_parents(host))
    host, new_row = _sort_by_start(host)
    parent = new_row[host.parent].astype(np.int32)
    work, _ = _sort_by_start(work)
    call, op = (new_row[row].astype(np.int32) for row in (work.call, work.op))
    host = msgspec.structs.replace(host, parent=parent)
    work = msgspec.structs.replace(work, call=call, op=op)
    return msgspec.structs.replace(replay_marks(events, clock), host=host, work=work)


def replay_marks(events: Events, clock: ReplayClock) -> Events:
    """The events with their marks and the span of the recording at replayed times, without sampled stacks and
    allocations; host spans and work keep their times."""
    recorded = [*events.span, *(ns for mark in events.marks for ns in (mark.start, mark.stop))]
    first, last, *bounds = clock.at(np.array(recorded, np.int64)).tolist()
    marks = tuple(
        msgspec.structs.replace(mark, start=start, stop=stop)
        for mark, start, stop in zip(events.marks, bounds[::2], bounds[1::2], strict=True)
    )
    return msgspec.structs.replace(events, marks=marks, device_marks=(), span=(first, last), stacks=None, memory=None)


class ReplayClock:
    """Maps recorded to replayed times, along a rank's host ops."""

    def __init__(self, profile: Profile, ops: I64, start: I64, stop: I64) -> None:
        """`start`, `stop`: replayed times of all ops of the profile in ns; `ops`: those of this rank, in order of their
        recorded times."""
        # Start and stop of each op in turn.
        recorded = np.stack([profile.ops.start[ops], profile.ops.stop[ops]], axis=1).reshape(-1)
        replayed = np.stack([start[ops], stop[ops]], axis=1).reshape(-1)
        # If one op directly follows another, the stop of the first is the start of the second: the later entry counts.
        is_last = np.append(recorded[1:] != recorded[:-1], True)[: len(recorded)]
        self.recorded_ns, self.replayed_ns = recorded[is_last], replayed[is_last]

    def at(self, time: I64) -> I64:
        """The replayed time of each recorded time, ns: by linear interpolation inside an op or a gap between ops, with
        a constant offset before the first and after the last."""
        if not len(self.recorded_ns):
            return time.copy()
        index = np.searchsorted(self.recorded_ns, time, "right") - 1
        low, high = np.clip(index, 0, None), np.clip(index + 1, None, len(self.recorded_ns) - 1)
        passed, width = time - self.recorded_ns[low], self.recorded_ns[high] - self.recorded_ns[low]
        inside = (index >= 0) & (width > 0)
        # Within one op floats are accurate enough, and exact if its length did not change.
        growth = np.where(inside, (self.replayed_ns[high] - self.replayed_ns[low]) / np.maximum(width, 1), 1.0)
        return self.replayed_ns[low] + np.floor(passed * growth).astype(np.int64)


def _open_parents(host: HostSpans) -> I32:
    """The parent of each span, or, if that begins after the span (a transfer starts later than the ops that prepare
    it), the next ancestor that does not: parents precede their children in order of start. `host`: in recorded order,
    with replayed times."""
    parent = host.parent.copy()
    while True:
        is_late = host.start[parent] > host.start
        is_late |= (host.start[parent] == host.start) & (host.stop[parent] < host.stop)
        is_late &= parent >= 0
        if not is_late.any():
            return parent
        parent[is_late] = host.parent[parent[is_late]]


def _sort_by_start(table: _Table) -> tuple[_Table, I64]:
    """The table sorted by start, the longest first (stable), and the new index of each row; the last entry, for row -1,
    is -1."""
    order = np.lexsort((np.arange(len(table)), -table.stop, table.start))
    new_row = np.full(len(order) + 1, -1, np.int64)
    new_row[order] = np.arange(len(order))
    columns = {name: getattr(table, name) for name in table.__struct_fields__}
    arrays = {name: column[order] for name, column in columns.items() if isinstance(column, np.ndarray)}
    collectives = {int(new_row[row]): collective for row, collective in table.collectives.items()}
    return msgspec.structs.replace(table, **arrays, collectives=collectives), new_row
