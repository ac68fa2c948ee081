"""Ops of a rank that trains on a CPU: its training thread, and the collectives that other threads run for it.

The first intervals of `Classified` are the stretches of the training thread, in order of time; the others (`spans`) are
collectives. `begin[row]` and `end[row]` are the numbers of the ops at the start and at the stop of a collective's
interval, which `dependencies.py` has added; they differ if the collective first waits for other ranks. `rank_index` is
the position of the rank in the list of ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, OP, Events
from trainyard.trace.classify.kernels import Classified, Keys, collective_of_op
from trainyard.trace.whatif.profile_ops import Draft, HostTimeline, Pauses, add_host, mark_of


def add_cpu_host(
    draft: Draft, rank_index: int, events: Events, classified: Classified, keys: Keys, begin: I64, end: I64
) -> I64:
    """Adds the training thread's ops to `draft` and returns their numbers, in order of time; none without stretches.

    A collective needs the op before its launch; the op after a wait needs the collectives that it waited for.
    `classified`: the intervals, those of the training thread first and then the collectives, whose `key` is an index
    into `keys.pairs` (account, phase). `begin`, `end`: ops of each collective, by row of `classified`.
    """
    stretch_count = len(classified.start) - len(classified.collectives)
    if not stretch_count:
        return np.empty(0, np.int64)
    spans = np.arange(stretch_count, len(classified.start))
    launched = _launch_times(events, classified.start[spans])
    accounts = draft.account_of([account for account, _ in keys.pairs])
    line = HostTimeline(
        edges=np.append(classified.start[:stretch_count], classified.stop[:stretch_count][-1:]),
        account=accounts[classified.key[:stretch_count]],
        label=draft.labels_of(events)[classified.name[:stretch_count]],
        unit=np.arange(stretch_count),
    )
    cuts = np.concatenate([launched, mark_of(events)])
    is_idle_key = np.array([account.kind == "launch_gap" for account, _ in keys.pairs], bool)
    is_idle = is_idle_key[classified.key[:stretch_count]]
    pauses = _find_pauses(classified, stretch_count, is_idle, spans, launched, end)
    ops = add_host(draft, rank_index, line, cuts, pauses, mark_of(events))
    # Every launch takes at least the shortest time that any of them took until its collective began.
    latency = max(0, int((classified.start[spans] - launched).min())) if len(spans) else 0
    before = ops.last_stopped_before(launched)
    draft.need(before[before >= 0], begin[spans[before >= 0]], latency)
    return ops.op


def add_cpu_order(draft: Draft, events: Events, classified: Classified, begin: I64, end: I64) -> None:
    """Adds the order of collectives to `draft`: each needs the previous one of the thread that runs them. `begin`,
    `end`: ops of each collective, by row of `classified`."""
    stretch_count = len(classified.start) - len(classified.collectives)
    spans = np.arange(stretch_count, len(classified.start))
    threads = events.host.thread[classified.launcher[spans]]
    for thread in np.unique(threads):
        rows = spans[threads == thread]
        draft.need(end[rows[:-1]], begin[rows[1:]])


def _launch_times(events: Events, spans: I64) -> I64:
    """When each collective was launched, ns. `spans`: the start of each collective's span, ns, sorted.

    The file does not link spans to ops, but both have the same order; if their numbers differ, the last op before the
    span counts, and without one the span itself.
    """
    host = events.host
    launches = np.array(
        [name.startswith("c10d::") and collective_of_op(name) is not None for name in events.names], bool
    )
    launch_start = host.start[(host.what == OP) & launches[host.name]]
    if len(launch_start) == len(spans):
        return np.minimum(launch_start, spans)
    index = np.searchsorted(launch_start, spans, "right") - 1
    return np.where(index >= 0, np.append(launch_start, 0)[index], spans)


def _find_pauses(
    classified: Classified, stretch_count: int, is_idle: NDArray[np.bool_], spans: I64, launched: I64, end: I64
) -> Pauses:
    """Finds the training thread's waits for collectives.

    A wait is an idle stretch in which a collective ended that the rank had launched before, if the thread resumed
    in no more time than it had been idle before. It may resume before the span closes, by a tenth of the stretch at
    most. The first `stretch_count` intervals are those of the training thread, `is_idle` a mask over them; `spans`: the
    rows of the collectives; `launched`: ns at which each of them was launched; `end`: the op at the stop of each row.
    """
    ends = classified.stop[spans]
    by_end = np.argsort(ends, kind="stable")
    idle_start, idle_stop = classified.start[:stretch_count][is_idle], classified.stop[:stretch_count][is_idle]
    first = np.searchsorted(ends[by_end], idle_start, "right")
    after = np.searchsorted(ends[by_end], idle_stop + (idle_stop - idle_start) // 10, "right")
    # Pairs of an idle stretch and a collective that ended in it: `stretch` is an index of the idle stretches, `span` of
    # `spans`. In order of their ends, the collectives of stretch i are first[i], first[i] + 1, ..., after[i] - 1.
    counts = np.maximum(after - first, 0)
    stretch = np.repeat(np.arange(len(idle_start)), counts)
    position_in_stretch = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    span = by_end[np.repeat(first, counts) + position_in_stretch]
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
