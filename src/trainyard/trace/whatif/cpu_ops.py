"""Ops of a rank that trains on a CPU: its training thread, and the collectives that other threads run for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, OP, Events
from trainyard.trace.classify.kernels import Classified, Keys, launched_by
from trainyard.trace.whatif.profile_ops import Draft, HostTimeline, Pauses, add_host, mark_of


def add_cpu_host(
    draft: Draft, rank_index: int, events: Events, classified: Classified, keys: Keys, begin: I64, end: I64
) -> I64:
    """Adds the training thread's ops and returns their numbers. They launch the rank's collectives (ops `begin`, by row
    of `classified`) and wait for them (ops `end`)."""
    stretches = len(classified.start) - len(classified.collectives)
    if not stretches:
        return np.empty(0, np.int64)
    spans = np.arange(stretches, len(classified.start))
    launched = _launch_times(events, classified.start[spans])
    accounts = draft.account_of([account for account, _ in keys.pairs])
    line = HostTimeline(
        edges=np.append(classified.start[:stretches], classified.stop[:stretches][-1:]),
        account=accounts[classified.key[:stretches]],
        label=draft.labels_of(events)[classified.name[:stretches]],
        unit=np.arange(stretches),
    )
    cuts = np.concatenate([launched, mark_of(events)])
    idles = np.array([account.kind == "launch_gap" for account, _ in keys.pairs], bool)
    pauses = _find_pauses(classified, stretches, idles[classified.key[:stretches]], spans, launched, end)
    ops = add_host(draft, rank_index, line, cuts, pauses, mark_of(events))
    latency = max(0, int((classified.start[spans] - launched).min())) if len(spans) else 0
    before = ops.before(launched)
    draft.need(before[before >= 0], begin[spans[before >= 0]], latency)
    return ops.op


def add_cpu_order(draft: Draft, events: Events, classified: Classified, begin: I64, end: I64) -> None:
    """Adds the order of collectives: a thread runs one after the other."""
    stretches = len(classified.start) - len(classified.collectives)
    spans = np.arange(stretches, len(classified.start))
    threads = events.host.thread[classified.launcher[spans]]
    for thread in np.unique(threads):
        rows = spans[threads == thread]
        draft.need(end[rows[:-1]], begin[rows[1:]])


def _launch_times(events: Events, spans: I64) -> I64:
    """When each collective was launched. The file does not link spans to ops, but both have the same order; if their
    numbers differ, the last op before the span counts."""
    host = events.host
    launches = np.array([name.startswith("c10d::") and launched_by(name) is not None for name in events.names], bool)
    launch_start = host.start[(host.what == OP) & launches[host.name]]
    if len(launch_start) == len(spans):
        return np.minimum(launch_start, spans)
    index = np.searchsorted(launch_start, spans, "right") - 1
    return np.where(index >= 0, np.append(launch_start, 0)[index], spans)


def _find_pauses(
    classified: Classified, stretches: int, idle: NDArray[np.bool_], spans: I64, launched: I64, end: I64
) -> Pauses:
    """Waits of the training thread for collectives: idle stretches in which a collective ended that the rank had
    launched before, if the thread resumed within less time than it had been idle before. It may resume before the span
    closes, by a tenth of the stretch at most. The first `stretches` intervals are those of the training thread, `idle`
    a mask over them; `spans`: the rows of the collectives; `launched`: ns at which each of them was launched; `end`:
    the op at the stop of each row."""
    ends = classified.stop[spans]
    by_end = np.argsort(ends, kind="stable")
    idle_start, idle_stop = classified.start[:stretches][idle], classified.stop[:stretches][idle]
    first = np.searchsorted(ends[by_end], idle_start, "right")
    after = np.searchsorted(ends[by_end], idle_stop + (idle_stop - idle_start) // 10, "right")
    # Pairs of a stretch and a collective that ended in it.
    counts = np.maximum(after - first, 0)
    stretch = np.repeat(np.arange(len(idle_start)), counts)
    span = by_end[np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)]
    # Without a record of the launch, the span itself begins a little after the wait.
    is_awaited = launched[span] <= idle_start[stretch] + (idle_stop - idle_start)[stretch] // 10
    stretch, span = stretch[is_awaited], span[is_awaited]
    last_end = np.full(len(idle_start), np.iinfo(np.int64).min)
    np.maximum.at(last_end, stretch, ends[span])
    until = np.minimum(last_end, idle_stop - 1)
    has_waited = (until > idle_start) & (idle_stop - until <= until - idle_start)
    awaited = has_waited[stretch]
    return Pauses(
        begin=idle_start[has_waited],
        end=until[has_waited],
        until=until[stretch[awaited]],
        awaited=end[spans[span[awaited]]],
    )
