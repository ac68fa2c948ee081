"""Events as they would have been recorded, had the ops run when a replay says."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from trainyard.events import I64, DeviceWork, Events, HostSpans, StepMark
from trainyard.trace.whatif.profile_ops import Profile

_Table = TypeVar("_Table", DeviceWork, HostSpans)


def replayed(events: Events, place: int, profile: Profile, start: I64, stop: I64) -> Events:
    """The rank's events with the ops' times (`start`, `stop`, by op). Host spans stretch and shrink with the ops they
    lie over; what was outside of all of them moves with the nearest."""
    host, work = events.host, events.work
    begin, end = profile.begin[place], profile.end[place]
    clock = _ReplayClock(profile, profile.host[place], start, stop)
    host = msgspec.structs.replace(host, start=clock.at(host.start), stop=clock.at(host.stop))
    marks = tuple(
        StepMark(label=mark.label, start=clock.when(mark.start), stop=clock.when(mark.stop)) for mark in events.marks
    )
    if len(work):
        work = msgspec.structs.replace(work, start=start[begin], stop=stop[end])
    else:
        spans = np.flatnonzero(begin >= 0)
        rows = profile.launcher[place][spans]
        host.start[rows], host.stop[rows] = start[begin[spans]], stop[end[spans]]
    host, moved = _sorted(host)
    parent = moved[host.parent].astype(np.int32)
    work, _ = _sorted(work)
    call, op = (moved[row].astype(np.int32) for row in (work.call, work.op))
    host = msgspec.structs.replace(host, parent=parent)
    work = msgspec.structs.replace(work, call=call, op=op)
    span = (clock.when(events.span[0]), clock.when(events.span[1]))
    return msgspec.structs.replace(events, host=host, work=work, marks=marks, device_marks=(), span=span)


class _ReplayClock:
    """From times as recorded to times as replayed, along a rank's host ops."""

    def __init__(self, profile: Profile, ops: I64, start: I64, stop: I64) -> None:
        old = np.stack([profile.ops.start[ops], profile.ops.stop[ops]], axis=1).reshape(-1)
        new = np.stack([start[ops], stop[ops]], axis=1).reshape(-1)
        # Where one op follows the other at once, the later one's start is the same instant.
        last = np.append(old[1:] != old[:-1], True)[: len(old)]
        self.old, self.new = old[last], new[last]

    def at(self, time: I64) -> I64:
        if not len(self.old):
            return time.copy()
        place = np.searchsorted(self.old, time, "right") - 1
        low, high = np.clip(place, 0, None), np.clip(place + 1, None, len(self.old) - 1)
        passed, width = time - self.old[low], self.old[high] - self.old[low]
        inside = (place >= 0) & (width > 0)
        # Within one op floats are exact enough, and exact where its length did not change.
        growth = np.where(inside, (self.new[high] - self.new[low]) / np.maximum(width, 1), 1.0)
        return self.new[low] + np.floor(passed * growth).astype(np.int64)

    def when(self, time: int) -> int:
        return int(self.at(np.array([time], np.int64))[0])


def _sorted(table: _Table) -> tuple[_Table, I64]:
    """By start, the longest first, else as it was; and where each row went, the last one being -1, of none."""
    order = np.lexsort((np.arange(len(table)), -table.stop, table.start))
    moved = np.full(len(order) + 1, -1, np.int64)
    moved[order] = np.arange(len(order))
    columns = {name: getattr(table, name) for name in table.__struct_fields__}
    arrays = {name: column[order] for name, column in columns.items() if isinstance(column, np.ndarray)}
    collectives = {int(moved[row]): found for row, found in table.collectives.items()}
    return msgspec.structs.replace(table, **arrays, collectives=collectives), moved
