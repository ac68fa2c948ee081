"""Builds the ops of one or more ranks and their dependencies from events.

An interval is a row of a rank's `Classified`: a kernel, a copy, or a collective. A matched collective has members on
several ranks, which wait for each other; a matched transfer has a sender and a receiver. Each interval becomes one op,
or two if it waits for other ranks: its arrival and its transfer. A need is an op that another op waits for.
`rank_index` is the position of a rank in the list of ranks. In `Meetings`, each of k members has a `rank_index` and an
`entry`, a row of the rank's survey; a survey's `row` is the interval of each entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, Events
from trainyard.trace.align.matching import Meetings, Transfers, meetings, transfers
from trainyard.trace.align.steps import part_of_interval
from trainyard.trace.align.survey import Survey, survey
from trainyard.trace.booking.book_rank import ClassifiedRank, RankTrace, classify_rank
from trainyard.trace.classify.kernels import Classified, Keys, key_collectives
from trainyard.trace.whatif.cpu_ops import add_cpu_host, add_cpu_order
from trainyard.trace.whatif.device_ops import add_device_host, add_order
from trainyard.trace.whatif.profile_ops import ARRIVAL, MEETING, NOWHERE, TRANSFER, WORK, Draft, Profile, mark_of

_MEETS_NOBODY = np.iinfo(np.int64).min
"""The arrival time of an interval that waits for no other rank."""


def whole_intervals(rank: RankTrace) -> ClassifiedRank:
    """The rank's intervals as recorded. Booking cuts collectives at the last arrival, which a replay computes
    itself."""
    if len(rank.events.work):
        classified = rank.classified._replace(start=rank.events.work.start)
        return ClassifiedRank(events=rank.events, context=rank.context, keys=rank.keys, classified=classified)
    # The spans of a CPU's collectives are classified again, since their recorded starts were replaced.
    uncut = classify_rank(rank.events, rank.context)
    return uncut._replace(classified=key_collectives(rank.events, uncut.keys, uncut.classified))


def build_profile(ranks: Sequence[ClassifiedRank], one_clock: bool) -> Profile:
    """Builds the ops of all ranks, numbered together, and their dependencies.

    `ranks`: as from `whole_intervals`, in order of rank. Collectives wait for other ranks only if the ranks share a
    clock (`one_clock`); otherwise each keeps its measured duration.
    """
    traces, contexts, keys, classified = zip(*ranks)
    surveys = [survey(*row) for row in zip(traces, classified, keys)] if one_clock and len(traces) > 1 else []
    # Collectives whose members overlap in time on all ranks, and transfers whose receive ends after the send begins.
    matched_collectives = meetings(surveys).overlapping() if surveys else None
    matched_transfers = transfers(surveys).possible() if surveys else None
    arrived = _arrival_times(classified, surveys, matched_collectives, matched_transfers)
    draft = Draft()
    # By rank: the ops at the start and at the stop of each interval, and the host's ops.
    begin, end, host = [], [], []
    for rank, row in enumerate(zip(traces, classified, keys, arrived)):
        first, last = _add_intervals(draft, rank, *row)
        begin.append(first)
        end.append(last)
    for rank, (events, context, classes, key) in enumerate(zip(traces, contexts, classified, keys)):
        if len(events.work):
            add_order(draft, events, begin[rank], end[rank])
            host.append(add_device_host(draft, rank, events, context, begin[rank], end[rank]))
        else:
            add_cpu_order(draft, events, classes, begin[rank], end[rank])
            host.append(add_cpu_host(draft, rank, events, classes, key, begin[rank], end[rank]))
    if matched_collectives is not None and matched_transfers is not None:
        _add_meetings(draft, surveys, matched_collectives, matched_transfers, begin, end)
    return draft.profile(host, begin, end, [classes.launcher for classes in classified])


def _arrival_times(
    classified: Sequence[Classified], surveys: Sequence[Survey], met: Meetings | None, sent: Transfers | None
) -> list[I64]:
    """For each rank, when (ns) each of its intervals stopped waiting for other ranks; `_MEETS_NOBODY` if it does not.

    `surveys`: of each rank, with `row`, the interval of each surveyed collective; `met`, `sent`: matched collectives
    and transfers, None without a common clock.
    """
    arrived = [np.full(len(item.start), _MEETS_NOBODY) for item in classified]
    if met is None or sent is None:
        return arrived
    last_arrival = np.repeat(met.arrived, np.diff(met.first))
    both_started = np.maximum(sent.sent_from, sent.received_from)
    for rank_index, item in enumerate(surveys):
        is_member = met.rank_index == rank_index
        is_sender, is_receiver = sent.sender == rank_index, sent.receiver == rank_index
        send_arrival = np.where(_send_waits(sent), both_started, sent.sent_from)
        arrived[rank_index][item.row[met.entry[is_member]]] = last_arrival[is_member]
        arrived[rank_index][item.row[sent.send[is_sender]]] = send_arrival[is_sender]
        arrived[rank_index][item.row[sent.receive[is_receiver]]] = both_started[is_receiver]
    return arrived


def _add_intervals(
    draft: Draft, rank_index: int, events: Events, classified: Classified, keys: Keys, arrived: I64
) -> tuple[I64, I64]:
    """Adds a rank's intervals to `draft`: (op at the start, op at the stop) of each of them.

    The two are the same for an interval that waits for no other rank, and -1 for the stretches of a CPU's training
    thread, which are added as host ops. `classified`: the intervals, whose `key` is an index into `keys.pairs`
    (account, phase). `arrived`: when each interval stopped waiting, ns; `_MEETS_NOBODY` if it did not wait.
    """
    n = len(classified.start)
    begin, end = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    rows = np.arange(0 if len(events.work) else n - len(classified.collectives), n)
    used_keys = np.unique(classified.key)
    account_of_key = np.zeros(len(keys.pairs) + 1, np.int64)
    account_of_key[used_keys] = draft.account_of([keys.pairs[key][0] for key in used_keys.tolist()])[: len(used_keys)]
    account = account_of_key[classified.key]
    label = draft.labels_of(events)[classified.name]
    step = np.full(n, NOWHERE, np.int64)
    if events.marks and len(events.work):
        step = part_of_interval(events, classified) - 1
    elif events.marks:
        step[rows] = np.searchsorted(mark_of(events), classified.start[rows], "right") - 1
    unmatched_rows, matched_rows = rows[arrived[rows] == _MEETS_NOBODY], rows[arrived[rows] != _MEETS_NOBODY]
    begin[unmatched_rows] = end[unmatched_rows] = draft.add(
        WORK,
        rank_index,
        classified.start[unmatched_rows],
        classified.stop[unmatched_rows],
        account[unmatched_rows],
        label[unmatched_rows],
        unmatched_rows,
        unmatched_rows,
        step[unmatched_rows],
    )
    columns = (account[matched_rows], label[matched_rows], matched_rows, matched_rows, step[matched_rows])
    begin[matched_rows] = draft.add(
        ARRIVAL, rank_index, classified.start[matched_rows], classified.start[matched_rows], *columns
    )
    end[matched_rows] = draft.add(TRANSFER, rank_index, arrived[matched_rows], classified.stop[matched_rows], *columns)
    draft.need(begin[matched_rows], end[matched_rows])
    return begin, end


def _add_meetings(
    draft: Draft, surveys: Sequence[Survey], met: Meetings, sent: Transfers, begin: list[I64], end: list[I64]
) -> None:
    """Adds cross-rank dependencies to `draft`.

    `surveys`: of each rank; `met`, `sent`: matched collectives and transfers. The transfer of a collective starts when
    the last member has arrived, a receive when the send has begun, and a send when the receive has begun, unless the
    send had ended by then. `begin[rank]`, `end[rank]`: the ops at the start and at the stop of each interval.
    """
    if len(met):
        meeting = draft.add(MEETING, -1, met.arrived, met.arrived)[met.meeting]
        for rank_index, survey_ in enumerate(surveys):
            is_member = met.rank_index == rank_index
            rows = survey_.row[met.entry[is_member]]
            draft.need(begin[rank_index][rows], meeting[is_member])
            draft.need(meeting[is_member], end[rank_index][rows])
    ends = zip(sent.sender, sent.send, sent.receiver, sent.receive, _send_waits(sent))
    for sender, send, receiver, receive, send_waits in ends:
        sends, receives = surveys[sender].row[[send]], surveys[receiver].row[[receive]]
        draft.need(begin[sender][sends], end[receiver][receives])
        if send_waits:
            draft.need(begin[receiver][receives], end[sender][sends])


def _send_waits(sent: Transfers) -> NDArray[np.bool_]:
    """Whether each send had not ended when its receive began, and thus waits for it."""
    return sent.received_from < sent.sent_until
