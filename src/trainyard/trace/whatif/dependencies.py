"""Events of one or many ranks -> their ops and what each waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, Events
from trainyard.trace.align.matching import Meetings, Transfers, meetings, transfers
from trainyard.trace.align.steps import belongs
from trainyard.trace.align.survey import Survey, survey
from trainyard.trace.booking.book_rank import classify_rank
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.kernels import Classified, Keys, key_collectives
from trainyard.trace.whatif.cpu_ops import add_cpu_host, add_cpu_order
from trainyard.trace.whatif.device_ops import add_device_host, add_order
from trainyard.trace.whatif.profile_ops import ARRIVAL, MEETING, NOWHERE, TRANSFER, WORK, Draft, Profile, mark_of

_ALONE = np.iinfo(np.int64).min


def profile(traces: Sequence[Events], contexts: Sequence[Context], one_clock: bool) -> Profile:
    """The ranks' ops. Only ranks on `one_clock` meet: else each collective lasts as long as it did."""
    # A measured rank is classified again: its booked intervals are cut at their last arrival, which a replay computes.
    ranks = [classify_rank(events, context) for events, context in zip(traces, contexts)]
    keys = [rank.keys for rank in ranks]
    classified = [key_collectives(rank.events, rank.keys, rank.classified) for rank in ranks]
    surveys = [survey(*row) for row in zip(traces, classified, keys)] if one_clock and len(traces) > 1 else []
    met, sent = meetings(surveys).overlapping() if surveys else None, transfers(surveys).possible() if surveys else None
    arrived = _arrivals(classified, surveys, met, sent)
    draft = Draft()
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
    if met is not None and sent is not None:
        _add_meetings(draft, surveys, met, sent, begin, end)
    return draft.profile(host, begin, end, [classes.launcher for classes in classified])


def _arrivals(
    found: Sequence[Classified], surveys: Sequence[Survey], met: Meetings | None, sent: Transfers | None
) -> list[I64]:
    """When each rank's each interval stopped waiting for other ranks; `_ALONE` for those that met none."""
    arrived = [np.full(len(one.start), _ALONE) for one in found]
    if met is None or sent is None:
        return arrived
    last = np.repeat(met.arrived, np.diff(met.first))
    begun = np.maximum(sent.sent_from, sent.received_from)
    for place, one in enumerate(surveys):
        own, received, begins = met.place == place, sent.receiver == place, sent.sender == place
        arrived[place][one.row[met.entry[own]]] = last[own]
        arrived[place][one.row[sent.send[begins]]] = np.where(_held(sent), begun, sent.sent_from)[begins]
        arrived[place][one.row[sent.receive[received]]] = begun[received]
    return arrived


def _add_intervals(
    draft: Draft, place: int, events: Events, one: Classified, keys: Keys, arrived: I64
) -> tuple[I64, I64]:
    """The ops that are the start and the stop of each interval; -1 for a CPU's stretches, which are its host's ops."""
    n = len(one.start)
    begin, end = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    rows = np.arange(0 if len(events.work) else n - len(one.collectives), n)
    account = draft.account_of([account for account, _ in keys.pairs])[one.key]
    label = draft.labels_of(events)[one.name]
    step = np.full(n, NOWHERE, np.int64)
    if events.marks and len(events.work):
        step = belongs(events, one) - 1
    elif events.marks:
        step[rows] = np.searchsorted(mark_of(events), one.start[rows], "right") - 1
    alone, meets = rows[arrived[rows] == _ALONE], rows[arrived[rows] != _ALONE]
    begin[alone] = end[alone] = draft.add(
        WORK, place, one.start[alone], one.stop[alone], account[alone], label[alone], alone, alone, step[alone]
    )
    about = (account[meets], label[meets], meets, meets, step[meets])
    begin[meets] = draft.add(ARRIVAL, place, one.start[meets], one.start[meets], *about)
    end[meets] = draft.add(TRANSFER, place, arrived[meets], one.stop[meets], *about)
    draft.need(begin[meets], end[meets])
    return begin, end


def _add_meetings(
    draft: Draft, surveys: Sequence[Survey], met: Meetings, sent: Transfers, begin: list[I64], end: list[I64]
) -> None:
    """Transfers start when the last member has arrived; a receive's, when the send has begun, and a send's, when the
    receive has, unless it was over by then."""
    if len(met):
        meeting = draft.add(MEETING, -1, met.arrived, met.arrived)[met.of]
        for place, one in enumerate(surveys):
            own = met.place == place
            rows = one.row[met.entry[own]]
            draft.need(begin[place][rows], meeting[own])
            draft.need(meeting[own], end[place][rows])
    ends = zip(sent.sender, sent.send, sent.receiver, sent.receive, _held(sent))
    for sender, send, receiver, receive, held in ends:
        sends, receives = surveys[sender].row[[send]], surveys[receiver].row[[receive]]
        draft.need(begin[sender][sends], end[receiver][receives])
        if held:
            draft.need(begin[receiver][receives], end[sender][sends])


def _held(sent: Transfers) -> NDArray[np.bool_]:
    """Whether the send was still there when the receive began: then it cannot end before it does."""
    return sent.received_from < sent.sent_until
