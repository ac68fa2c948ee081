"""Causes of device idle time: what the host or the launch queue was doing before the next work began.

An idle interval ends with the start of some work. Before the launch of that work, the cause is what the launching host
thread did (`sync`, `alloc`, `compile`, `gc`, waiting for data or for peers, a checkpoint; `launch` in framework code,
else `python`); during the launching call it is `launch`; after it, `stream_wait` if the stream had to wait for the
stream whose work ended last, else `queue`. Gaps between the kernels of one CUDA graph are `queue` too: the kernels were
launched together, and the gap is the device's own overhead. If the file has no launch for the work, the interval is not
covered and is booked as unexplained.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import CALL, I32, I64, OP, DeviceWork, Events
from trainyard.ledger import Account
from trainyard.trace.booking.intervals import cut
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.kernels import Keys
from trainyard.trace.readers.nesting import innermost

FIXED = ("launch_gap/python", "launch_gap/launch", "launch_gap/queue", "launch_gap/stream_wait")
"""Reasons 0 to 3 of `host_reasons`; those from 4 on are the causes of the rank's context."""
_PYTHON, _LAUNCH, _QUEUE, _STREAM_WAIT = range(4)


def idle(events: Events, context: Context, keys: Keys) -> tuple[I64, I64, I32]:
    """(start, stop, key) of a device's idle intervals with a known cause; they do not overlap."""
    work, host = events.work, events.host
    latest = np.maximum.accumulate(work.stop)
    ends = np.flatnonzero(work.start[1:] > latest[:-1]) + 1
    ends = ends[work.call[ends] >= 0]
    call = work.call[ends]
    gap_start, gap_stop = latest[ends - 1], work.start[ends]
    begun = np.clip(host.start[call], gap_start, gap_stop)
    issued = np.clip(host.stop[call], begun, gap_stop)

    starts, stops = [begun, issued], [issued, gap_stop]
    gaps = [np.arange(len(ends))] * 2
    reasons = [np.full(len(ends), _LAUNCH), np.where(_awaited(work, latest, ends), _STREAM_WAIT, _QUEUE)]
    for thread in np.flatnonzero(np.bincount(host.thread[call])).tolist():
        edges, reason = host_reasons(events, context, thread)
        rows = np.flatnonzero((host.thread[call] == thread) & (begun > gap_start))
        piece, begin, end = cut(gap_start[rows], begun[rows], edges)
        starts.append(begin)
        stops.append(end)
        gaps.append(rows[piece])
        reasons.append(reason[np.searchsorted(edges, begin, "right")])
    start, stop = np.concatenate(starts), np.concatenate(stops)
    gap, reason = np.concatenate(gaps), np.concatenate(reasons)
    accounts = [Account.parse(text) for text in (*FIXED, *context.causes)]
    phase = context.phase[call][gap]
    nonempty = stop > start
    pair = reason[nonempty] * 16 + phase[nonempty]
    number = np.full(16 * len(accounts), -1, np.int32)
    for index in np.flatnonzero(np.bincount(pair)).tolist():
        number[index] = keys.number(accounts[index // 16], index % 16)
    return start[nonempty], stop[nonempty], number[pair]


def _awaited(work: DeviceWork, latest: I64, ends: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each row of `ends` had to wait for the stream of the work that ended last before it. `latest`: running
    maximum of stops, by row."""
    last = np.maximum.accumulate(np.where(work.stop == latest, np.arange(len(latest)), 0))
    return (work.awaits[ends] >= 0) & (work.awaits[ends] == work.stream[last[ends - 1]])


def host_reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """Why a host thread launches nothing, as (edge, reason): reason[i] holds before edge[i], reason[-1] after the last.

    A thread without an open span (an autograd thread between passes) waits for the main thread and takes its reason.
    """
    edges, reason = _reasons(events, context, thread)
    if thread == events.main:
        return edges, np.where(reason < 0, _PYTHON, reason)
    main_edges, main = host_reasons(events, context, events.main)
    both = np.sort(np.concatenate([edges, main_edges]), kind="stable")
    own = reason[np.searchsorted(edges, both, "left")]
    others = main[np.searchsorted(main_edges, both, "left")]
    return _changes(both, np.concatenate([np.where(own < 0, others, own), [_PYTHON]]))


def _reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """As `host_reasons`, with -1 while no span of this thread is open."""
    host = events.host
    edges, owner = innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == thread))
    open_ = owner >= 0
    cause = context.cause[owner]
    in_framework = (host.what[owner] == OP) | (host.what[owner] == CALL)
    reason = np.where(cause >= 0, cause + len(FIXED), np.where(in_framework, _LAUNCH, _PYTHON))
    return _changes(edges, np.concatenate([[-1], np.where(open_, reason, -1)]).astype(np.int64))


def _changes(edges: I64, reason: I64) -> tuple[I64, I64]:
    """Only the edges at which the reason changes."""
    changed = reason[1:] != reason[:-1]
    return edges[changed], np.concatenate([reason[:1], reason[1:][changed]])
