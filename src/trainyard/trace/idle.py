"""Why a device stood idle: what the host or the queue was doing before the next work began.

For the work that ends an idle stretch: before its launch began, the host thread that would launch it says
why (`sync`, `alloc`, `compile`, `gc`, waiting for data, a checkpoint; in framework code `launch`, else
`python`); during the launching call it is `launch`; after it, `queue`. Without a launch in the file the
stretch stays uncovered, which books it as unexplained.
"""

from __future__ import annotations

import numpy as np

from trainyard.events import CALL, I32, I64, OP, Events
from trainyard.ledger import Account
from trainyard.trace.book import cut
from trainyard.trace.classify import Keys
from trainyard.trace.context import Context
from trainyard.trace.nest import innermost

_FIXED = ("launch_gap/python", "launch_gap/launch", "launch_gap/queue")
_PYTHON, _LAUNCH, _QUEUE = range(3)


def idle(events: Events, context: Context, keys: Keys) -> tuple[I64, I64, I32]:
    """(start, stop, key) of the explained idle stretches of a device; they do not overlap."""
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
    reasons = [np.full(len(ends), _LAUNCH), np.full(len(ends), _QUEUE)]
    for thread in np.unique(host.thread[call]):
        edges, reason = host_reasons(events, context, int(thread))
        rows = np.flatnonzero((host.thread[call] == thread) & (begun > gap_start))
        piece, begin, end = cut(gap_start[rows], begun[rows], edges)
        starts.append(begin)
        stops.append(end)
        gaps.append(rows[piece])
        reasons.append(reason[np.searchsorted(edges, begin, "right")])
    start, stop = np.concatenate(starts), np.concatenate(stops)
    gap, reason = np.concatenate(gaps), np.concatenate(reasons)
    accounts = [Account.parse(text) for text in (*_FIXED, *context.causes)]
    phase = context.phase[call][gap]
    pair = reason * 16 + phase
    key_of = {p: keys.number(accounts[p // 16], p % 16) for p in np.unique(pair).tolist()}
    key = np.array([key_of[p] for p in pair.tolist()], np.int32)
    some = stop > start
    return start[some], stop[some], key[some]


def host_reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """Why a host thread launches nothing: reason[i] holds before edge[i], reason[-1] after the last.

    A thread with nothing open (an autograd thread between passes) waits for the main thread, whose reason counts.
    """
    edges, reason = _reasons(events, context, thread)
    if thread == events.main:
        return edges, np.where(reason < 0, _PYTHON, reason)
    main_edges, main = host_reasons(events, context, events.main)
    both = np.union1d(edges, main_edges)
    own = reason[np.searchsorted(edges, both, "left")]
    others = main[np.searchsorted(main_edges, both, "left")]
    reason = np.concatenate([np.where(own < 0, others, own), [_PYTHON]])
    return both, reason


def _reasons(events: Events, context: Context, thread: int) -> tuple[I64, I64]:
    """As `host_reasons`, with -1 where no span of this thread is open."""
    host = events.host
    edges, owner = innermost(host.start, host.stop, host.parent, np.flatnonzero(host.thread == thread))
    open_ = owner >= 0
    cause = context.cause[owner]
    in_framework = (host.what[owner] == OP) | (host.what[owner] == CALL)
    reason = np.where(cause >= 0, cause + len(_FIXED), np.where(in_framework, _LAUNCH, _PYTHON))
    return edges, np.concatenate([[-1], np.where(open_, reason, -1)]).astype(np.int64)
