"""Ops of a rank with a device: its kernels and copies, and its host's work between launches.

`dependencies.py` adds an op for each interval of device work, and calls this file for the host's ops and for the
dependencies between them. `begin[row]` and `end[row]` are the numbers of the ops at the start and at the stop of a row
of the device work (`events.work`); they differ if the work first waits for other ranks. `work.call` is the host row of
the call that launched a row, `work.awaits` the stream that it had to wait for, -1 if not recorded. `rank_index` is the
position of the rank in the list of ranks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from trainyard.events import CALL, COPY, I64, Events
from trainyard.trace.booking.idle import host_reasons, reason_accounts
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.host_causes import host_cause
from trainyard.trace.whatif.profile_ops import Draft, HostTimeline, Pauses, add_host, mark_of


def add_device_host(draft: Draft, rank_index: int, events: Events, context: Context, begin: I64, end: I64) -> I64:
    """Adds a rank's host ops to `draft` and returns their numbers, in order of time; none without host spans.

    A file of a compiled schedule records no host: its reader derives launches, which take no time, from the device
    work. It has no host ops either, so that a wait between two rows is a delay without a recorded cause.

    Device work needs the host op before its launch; host ops after a synchronising call need the work that the call
    waited for. `context`: causes of host spans; `begin`, `end`: ops of each row of the work.
    """
    work, host = events.work, events.host
    if not len(host):
        return np.empty(0, np.int64)
    rows = np.flatnonzero(work.call >= 0)
    launched = host.start[work.call[rows]]
    if len(rows) and (host.stop[work.call[rows]] == launched).all():
        return np.empty(0, np.int64)
    line = _host_timeline(draft, events, context)
    cuts = np.array([time for mark in events.marks for time in (mark.start, mark.stop)], np.int64)
    ops = add_host(draft, rank_index, line, cuts, _find_pauses(events, end), mark_of(events))
    # Every launch takes at least the shortest time that any of them took until its work began.
    latency = max(0, int((work.start[rows] - launched).min())) if len(rows) else 0
    before = ops.last_stopped_before(launched)
    draft.need(before[before >= 0], begin[rows[before >= 0]], latency)
    return ops.op


def add_order(draft: Draft, events: Events, begin: I64, end: I64) -> None:
    """Adds the dependencies of device work to `draft`: on earlier work of its stream, and on the streams it waits for.

    If the file does not record the latter, a row depends on the last row of each other stream that was launched before
    it and had ended when it began: the observed order. `begin`, `end`: ops of each row of the work.
    """
    work = events.work
    has_recorded_waits = bool((work.awaits >= 0).any())
    launched = np.where(work.call >= 0, events.host.start[work.call], work.start) if len(events.host) else work.start
    streams = [np.flatnonzero(work.stream == stream) for stream in range(len(events.streams))]
    for rows in streams:
        # A row needs the row before it and, if rows of a stream overlap, the earlier row that ended last.
        latest = np.maximum.accumulate(work.stop[rows])
        longest = np.maximum.accumulate(np.where(work.stop[rows] == latest, np.arange(len(rows)), 0))
        draft.need(end[rows[:-1]], begin[rows[1:]])
        is_other_row = longest[:-1] != np.arange(len(rows) - 1)
        draft.need(end[rows[longest[:-1][is_other_row]]], begin[rows[1:][is_other_row]])
    # By stream: running maxima of the launches and of the ends, which are sorted.
    launch_orders = [np.maximum.accumulate(launched[rows]) for rows in streams]
    end_orders = [np.maximum.accumulate(work.stop[rows]) for rows in streams]
    for stream, rows in enumerate(streams):
        latest_start = work.start[rows].max(initial=-1)
        for other_stream, other_rows in enumerate(streams):
            # A file may have hundreds of streams: most pairs are skipped before any search.
            if other_stream == stream or not len(other_rows) or end_orders[other_stream][0] > latest_start:
                continue
            waiting_rows = rows[work.awaits[rows] == other_stream] if has_recorded_waits else rows
            if not len(waiting_rows):
                continue
            # Positions in `other_rows` of the last row that was launched, and of the last that had ended, before each
            # waiting row.
            by_launch = launch_orders[other_stream].searchsorted(launched[waiting_rows], "left")
            by_end = end_orders[other_stream].searchsorted(work.start[waiting_rows], "right")
            last = np.minimum(by_launch, by_end) - 1
            # Skip rows whose predecessor on the stream already waits for the same row.
            is_new = last >= 0
            is_new[1:] &= last[1:] != last[:-1]
            if is_new.any():
                draft.need(end[other_rows[last[is_new]]], begin[waiting_rows[is_new]])


def _host_timeline(draft: Draft, events: Events, context: Context) -> HostTimeline:
    """The host's timeline: the training thread and the other thread with the most launches (the autograd engine's),
    which run in turn. `context`: causes of host spans; `draft` numbers accounts and labels.

    A stretch ends where the host's activity changes or with a launch. Its account is that of the activity; its label is
    the name of the work that the next launch starts, and its unit the number of that launch in order of time.
    """
    host, work = events.host, events.work
    # Host rows of the launching calls, and the first device row of each.
    calls, first = np.unique(work.call, return_index=True)
    first, calls = first[calls >= 0], calls[calls >= 0]
    threads, launches = np.unique(host.thread[calls], return_counts=True)
    launches = launches[threads != events.main]
    threads = threads[threads != events.main]
    busiest = int(threads[launches.argmax()]) if len(threads) else events.main
    # Reason i, a number of `reason_accounts`, holds before edge i. The training thread's apply while this one is idle.
    edges, reasons = host_reasons(events, context, busiest)
    low, high = int(host.start.min()), int(host.stop.max())
    changes = edges[reasons[1:] != reasons[:-1]]
    points = np.unique(np.concatenate([changes, host.start[calls], [low, high]]))
    points = points[(points >= low) & (points <= high)]
    used, reason = np.unique(reasons[np.searchsorted(edges, points[:-1], "right")], return_inverse=True)
    accounts = reason_accounts(events, context)
    account_numbers = draft.account_of([accounts[number] for number in used.tolist()])
    by_start = np.argsort(host.start[calls], kind="stable")
    unit = np.searchsorted(host.start[calls][by_start], points[1:])
    names = np.append(work.name[first][by_start], -1)  # -1: the name after the last launch
    return HostTimeline(
        edges=points, account=account_numbers[reason], label=draft.labels_of(events)[names[unit]], unit=unit
    )


def _find_pauses(events: Events, end: I64) -> Pauses:
    """Finds the host's waits in synchronising calls: from the call until the last work ended that it waited for.

    A synchronising call waits for the work that ended last before its return, if that was launched before the call and
    ended during it; otherwise it did not wait. The call of a copy waits for that copy, if it ended before the call
    returned. `end`: the op at the stop of each device row.
    """
    host, work = events.host, events.work
    syncs = np.array([_is_sync(name) for name in events.names], bool)
    rows = np.flatnonzero((host.what == CALL) & syncs[host.name])
    copies = np.flatnonzero((work.what == COPY) & (work.call >= 0))
    copies = copies[(work.stop[copies] < host.stop[work.call[copies]]) & ~np.isin(work.call[copies], rows)]
    by_end = np.argsort(work.stop, kind="stable")
    # For each synchronising call, the device row that ended last before the call returned. A call that returned before
    # any work ended did not wait.
    ended_count = np.searchsorted(work.stop[by_end], host.stop[rows], "right")
    rows, ended_count = rows[ended_count > 0], ended_count[ended_count > 0]
    last = by_end[ended_count - 1]
    launched = np.where(work.call[last] >= 0, host.start[work.call[last]], work.start[last])
    launched_before = launched <= host.start[rows]
    # Host row of each waiting call, and device row that it waits for.
    call = np.concatenate([rows[launched_before], work.call[copies]])
    awaited = np.concatenate([last[launched_before], copies])
    order = np.argsort(host.start[call], kind="stable")
    call, awaited = call[order], awaited[order]
    call_start, call_stop = host.start[call], host.stop[call]
    # The host resumes at least 1 ns after the device.
    until = np.minimum(work.stop[awaited], call_stop - 1)
    # A call inside an earlier one does not count: pauses must not overlap. The slice is for no calls at all.
    is_disjoint = np.concatenate([[True], call_start[1:] >= np.maximum.accumulate(call_stop)[:-1]])[: len(call)]
    waited = is_disjoint & (until > call_start)
    return Pauses(begin=call_start[waited], end=until[waited], until=until[waited], awaited=end[awaited[waited]])


@lru_cache(maxsize=65536)
def _is_sync(name: str) -> bool:
    return host_cause(name) == "launch_gap/sync"
