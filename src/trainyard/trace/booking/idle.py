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
from trainyard.trace.booking.intervals import cut_at_bounds
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.kernels import Keys
from trainyard.trace.readers.nesting import split_by_innermost

FIXED_REASONS = ("launch_gap/python", "launch_gap/launch", "launch_gap/queue", "launch_gap/stream_wait")
"""Reasons 0 to 3 of `host_reasons`; those from 4 on are the causes of the rank's context."""
_PYTHON, _LAUNCH, _QUEUE, _STREAM_WAIT = range(4)


def find_idle(events: Events, context: Context, keys: Keys) -> tuple[I64, I64, I32]:
    """(start, stop, key) of a device's idle intervals with a known cause; they do not overlap."""
    work, host = events.work, events.host
    latest_stop = np.maximum.accumulate(work.stop)
    first_work = np.flatnonzero(work.start[1:] > latest_stop[:-1]) + 1
    first_work = first_work[work.call[first_work] >= 0]
    call = work.call[first_work]
    gap_start, gap_stop = latest_stop[first_work - 1], work.start[first_work]
    call_start = np.clip(host.start[call], gap_start, gap_stop)
    call_stop = np.clip(host.stop[call], call_start, gap_stop)

    starts, stops = [call_start, call_stop], [call_stop, gap_stop]
    gaps = [np.arange(len(first_work))] * 2
    reasons = [
        np.full(len(first_work), _LAUNCH),
        np.where(_waited_for_stream(work, latest_stop, first_work), _STREAM_WAIT, _QUEUE),
    ]
    for thread in np.flatnonzero(np.bincount(host.thread[call])).tolist():
        edges, reason = host_reasons(events, context, thread)
        rows = np.flatnonzero((host.thread[call] == thread) & (call_start > gap_start))
        piece, begin, end = cut_at_bounds(gap_start[rows], call_start[rows], edges)
        starts.append(begin)
        stops.append(end)
        gaps.append(rows[piece])
        reasons.append(reason[np.searchsorted(edges, begin, "right")])
    start, stop = np.concatenate(starts), np.concatenate(stops)
    gap, reason = np.concatenate(gaps), np.concatenate(reasons)
    accounts = [Account.parse(text) for text in (*FIXED_REASONS, *context.causes)]
    phase = context.phase[call][gap]
    nonempty = stop > start
    # 16 is more than the number of phases.
    reason_and_phase = reason[nonempty] * 16 + phase[nonempty]
    key_of_pair = np.full(16 * len(accounts), -1, np.int32)
    for index in np.flatnonzero(np.bincount(reason_and_phase)).tolist():
        key_of_pair[index] = keys.number(accounts[index // 16], index % 16)
    return start[nonempty], stop[nonempty], key_of_pair[reason_and_phase]


def _waited_for_stream(work: DeviceWork, latest_stop: I64, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each of `rows` of `work` had to wait for the stream of the work that ended last before it. `latest_stop`:
    running maximum of stops, by row."""
    last = np.maximum.accumulate(np.where(work.stop == latest_stop, np.arange(len(latest_stop)), 0))
    return (work.awaits[rows] >= 0) & (work.awaits[rows] == work.stream[last[rows - 1]])


def host_reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """Why a host thread launches nothing, as (edge, reason): reason[i] holds before edge[i], reason[-1] after the last.

    A thread without an open span (an autograd thread between passes) waits for the main thread and takes its reason.
    """
    edges, reason = _thread_reasons(events, context, thread)
    if thread == events.main:
        return edges, np.where(reason < 0, _PYTHON, reason)
    main_edges, main_reasons = host_reasons(events, context, events.main)
    all_edges = np.sort(np.concatenate([edges, main_edges]), kind="stable")
    own_reason = reason[np.searchsorted(edges, all_edges, "left")]
    main_reason = main_reasons[np.searchsorted(main_edges, all_edges, "left")]
    return _keep_changes(all_edges, np.concatenate([np.where(own_reason < 0, main_reason, own_reason), [_PYTHON]]))


def _thread_reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """Why this thread launches nothing, as (edges in ns, reason numbers): reason[i] holds before edge[i]; -1 while none
    of its spans is open."""
    host = events.host
    edges, owner = split_by_innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == thread))
    open_ = owner >= 0
    cause = context.cause[owner]
    in_framework = (host.what[owner] == OP) | (host.what[owner] == CALL)
    reason = np.where(cause >= 0, cause + len(FIXED_REASONS), np.where(in_framework, _LAUNCH, _PYTHON))
    return _keep_changes(edges, np.concatenate([[-1], np.where(open_, reason, -1)]).astype(np.int64))


def _keep_changes(edges: I64, reason: I64) -> tuple[I64, I64]:
    """Only the edges at which the reason changes."""
    changed = reason[1:] != reason[:-1]
    return edges[changed], np.concatenate([reason[:1], reason[1:][changed]])
