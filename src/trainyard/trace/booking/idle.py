"""Causes of device idle time: what the host or the launch queue was doing before the next work began.

An idle interval ends with the start of some work. Before the launch of that work, the cause is what the launching host
thread did (`sync`, `alloc`, `compile`, `gc`, `init`, waiting for data or for peers, a checkpoint; `launch` in framework
code, else `python`, or `host` if the file does not show Python); during the launching call it is `launch`, or `init` at
a first use; after it, `stream_wait` if the stream had to wait for the stream whose work ended last, else `queue`. Gaps
between the kernels of one CUDA graph are `queue` too: the kernels were launched together, and the gap is the device's
own overhead. If the file has no launch for the work, the interval is not covered and is booked as unexplained.

A cause is an account (`launch_gap/sync`, `data_wait`, `checkpoint/save`) that `classify/` assigned to the host span by
its name; a reason is the number of an account that this file uses for the host's activity at a time. A host row is an
index into the columns of `events.host`. Of device work, `call` is the host row of the call that launched each row, and
`awaits` the stream that it had to wait for; both are -1 if not recorded. Rows are sorted by start.

At the start of a profile the device may be busy with work that was launched before and is not in the file. `edge` is
the time before the first host span of the file, and the queueing of a stream's first recorded work for more than a
millisecond if it is among the first launches of the file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import CALL, I32, I64, OP, DeviceWork, Events
from trainyard.ledger import Account
from trainyard.trace.booking.intervals import cut_at_bounds
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.first_use import INIT
from trainyard.trace.classify.kernels import Keys
from trainyard.trace.readers.nesting import split_by_innermost

_PYTHON, _LAUNCH, _QUEUE, _STREAM_WAIT, _EDGE, _FIXED_REASONS = range(6)
"""Reasons 0 to 4 of `host_reasons`; those from 5 on are the causes of the rank's context."""
_PHASE_BASE = 16
"""More than the number of phases."""
_MIN_EDGE_NS = 1_000_000
"""Shorter queueing of a stream's first work may be the latency of a launch."""
_MIN_FIRST_LAUNCHES = 32
_FIRST_LAUNCHES_FRACTION = 0.02
"""The launches of a file that may queue behind unrecorded work: at least `_MIN_FIRST_LAUNCHES`."""


def reason_accounts(events: Events, context: Context) -> list[Account]:
    """The account of each reason number of `host_reasons`: five fixed ones, then the causes of the rank's context."""
    fixed = ("python" if events.shows_python else "host", "launch", "queue", "stream_wait", "edge")
    return [*(Account("launch_gap", cause) for cause in fixed), *map(Account.parse, context.causes)]


def find_idle(events: Events, context: Context, keys: Keys) -> tuple[I64, I64, I32]:
    """Finds a device's idle intervals with a known cause: (start ns, stop ns, key) of each; they do not overlap.

    `context`: phase and cause of each host row; `keys`: numbers of (account, phase) pairs, to which those of idle time
    are added in place. A gap is the idle time before a row of the device work that starts after all earlier rows have
    stopped. It is cut into up to three stages: before the launching call (by what the host did), during it, and after
    it (queueing). Gaps before work without a recorded launch are left out.
    """
    work, host = events.work, events.host
    latest_stop = np.maximum.accumulate(work.stop)
    first_work = np.flatnonzero(work.start[1:] > latest_stop[:-1]) + 1
    first_work = first_work[work.call[first_work] >= 0]
    call = work.call[first_work]
    gap_start, gap_stop = latest_stop[first_work - 1], work.start[first_work]
    call_start = np.clip(host.start[call], gap_start, gap_stop)
    call_stop = np.clip(host.stop[call], call_start, gap_stop)

    # Pieces of gaps: `gaps` has the index of each piece's gap, `reasons` its reason number.
    starts, stops = [call_start, call_stop], [call_stop, gap_stop]
    gaps = [np.arange(len(first_work))] * 2
    queued = np.where(_waited_for_stream(work, latest_stop, first_work), _STREAM_WAIT, _QUEUE)
    is_long = gap_stop - call_stop >= _MIN_EDGE_NS
    queued[is_long & _may_follow_unrecorded_work(events)[first_work]] = _EDGE
    # Row -1 of a cause is the last element, so that calls without a cause do not initialise.
    initialises = np.array([text == INIT for text in context.causes] + [False], bool)[context.cause[call]]
    reasons = [np.where(initialises, context.cause[call] + _FIXED_REASONS, _LAUNCH), queued]
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
    accounts = reason_accounts(events, context)
    phase = context.phase[call][gap]
    nonempty = stop > start
    # A pair of reason and phase is packed into one number.
    reason_and_phase = reason[nonempty] * _PHASE_BASE + phase[nonempty]
    key_of_pair = np.full(_PHASE_BASE * len(accounts), -1, np.int32)
    for index in np.flatnonzero(np.bincount(reason_and_phase)).tolist():
        key_of_pair[index] = keys.number(accounts[index // _PHASE_BASE], index % _PHASE_BASE)
    return start[nonempty], stop[nonempty], key_of_pair[reason_and_phase]


def _waited_for_stream(work: DeviceWork, latest_stop: I64, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each of `rows` of `work` had to wait for the stream of the work that ended last before it.

    `rows`: rows of `work`, each after the first; `latest_stop`: running maximum of `work.stop`, by row.
    """
    # For each row, the last row up to it that stopped at the latest stop so far.
    last = np.maximum.accumulate(np.where(work.stop == latest_stop, np.arange(len(latest_stop)), 0))
    return (work.awaits[rows] >= 0) & (work.awaits[rows] == work.stream[last[rows - 1]])


def _may_follow_unrecorded_work(events: Events) -> NDArray[np.bool_]:
    """Whether each row of the device work may have queued behind work that the file does not contain.

    That is so for the first work on a stream with a recorded launch, if that launch is among the first of the file.
    """
    work = events.work
    launched = np.flatnonzero(work.call >= 0)
    is_first = np.zeros(len(work), bool)
    # np.unique returns the first row of each stream.
    is_first[launched[np.unique(work.stream[launched], return_index=True)[1]]] = True
    launch_ns = np.sort(events.host.start[work.call[launched]])
    limit = min(len(launched), max(_MIN_FIRST_LAUNCHES, int(_FIRST_LAUNCHES_FRACTION * len(launched))))
    rows = np.flatnonzero(is_first)
    is_first[rows] = events.host.start[work.call[rows]] <= (launch_ns[limit - 1] if limit else 0)
    return is_first


def host_reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """Why a host thread launches nothing, over time: (edges in ns, sorted; reason numbers).

    `reason[i]` holds from edge[i - 1] to edge[i], the last one after the last edge. Numbers are those of
    `reason_accounts`. `context`: the cause of each host row; `thread`: a thread number of `events.host.thread`.

    A thread without an open span (an autograd thread between passes) waits for the main thread and takes its reason.
    """
    edges, reason = _thread_reasons(events, context, thread)
    if thread == events.main:
        # Before the first span of the file the profile begins; a time without an open span is bare Python.
        first_ns = events.host.start[:1]
        reason = np.concatenate([np.full(len(first_ns), _EDGE), np.where(reason < 0, _PYTHON, reason)])
        return np.concatenate([first_ns, edges]), reason
    main_edges, main_reasons = host_reasons(events, context, events.main)
    all_edges = np.sort(np.concatenate([edges, main_edges]), kind="stable")
    own_reason = reason[np.searchsorted(edges, all_edges, "left")]
    main_reason = main_reasons[np.searchsorted(main_edges, all_edges, "left")]
    return _keep_changes(all_edges, np.concatenate([np.where(own_reason < 0, main_reason, own_reason), [_PYTHON]]))


def _thread_reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """Why this thread launches nothing, from its own spans only: (edges in ns, reason numbers) as in `host_reasons`; -1
    while none of its spans is open."""
    host = events.host
    # `owner[i]`: the innermost host row from edge i on, -1 if no span is open; the values for -1 are replaced below.
    edges, owner = split_by_innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == thread))
    is_open = owner >= 0
    cause = context.cause[owner]
    in_framework = (host.what[owner] == OP) | (host.what[owner] == CALL)
    reason = np.where(cause >= 0, cause + _FIXED_REASONS, np.where(in_framework, _LAUNCH, _PYTHON))
    return _keep_changes(edges, np.concatenate([[-1], np.where(is_open, reason, -1)]).astype(np.int64))


def _keep_changes(edges: I64, reason: I64) -> tuple[I64, I64]:
    """Drops the edges (ns) at which the reason does not change. `reason`: one element more than `edges`."""
    changed = reason[1:] != reason[:-1]
    return edges[changed], np.concatenate([reason[:1], reason[1:][changed]])
