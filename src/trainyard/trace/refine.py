"""Split each collective at its last arrival (before it straggler, from it on comm), and each end of a pipeline's
transfers at the other end's start (before it bubble, from it on comm)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I32, I64
from trainyard.ledger import Account
from trainyard.trace.book import cut
from trainyard.trace.classify import Classified, Keys
from trainyard.trace.meetings import Meetings
from trainyard.trace.steps import Part
from trainyard.trace.survey import Survey
from trainyard.trace.transfers import Transfers

_COMPUTE = list(words.KINDS).index("compute")
_WARMUP, _DRAIN, _STEADY = words.BUBBLES


class Waits(NamedTuple):
    """A rank's waits: [start, stop) booked under key, for the rank at place `late` to come."""

    start: I64
    stop: I64
    key: I32
    late: I32


class Cuts(NamedTuple):
    """Where a rank's intervals `row` are split: at `at`, since until then they waited for the rank at place `late`."""

    row: I64
    at: I64
    late: I32


def last_arrivals(met: Meetings, surveys: Sequence[Survey]) -> list[Cuts]:
    """For each rank, its collectives that began before the last member came."""
    sizes = np.diff(met.first)
    last, late = np.repeat(met.arrived, sizes), np.repeat(met.late, sizes)
    waited = met.start < last
    return _by_place(surveys, met.place[waited], met.entry[waited], last[waited], late[waited])


def unmet(sent: Transfers, surveys: Sequence[Survey]) -> list[Cuts]:
    """For each rank, its receives that began before the send did, and its sends that began before the receive."""
    early = sent.received_from < sent.sent_from
    # A short message may be buffered, and its send be over before anybody receives.
    held = (sent.sent_from < sent.received_from) & (sent.received_from < sent.sent_until)
    until = np.where(held, sent.received_from, sent.sent_from)
    late = sent.receiver.copy()
    for place in [place for place, one in enumerate(surveys) if not one.on_device]:
        _until_received(sent, early, place, until, late)
    held = until > sent.sent_from
    return _by_place(
        surveys,
        np.concatenate([sent.receiver[early], sent.sender[held]]),
        np.concatenate([sent.receive[early], sent.send[held]]),
        np.concatenate([sent.sent_from[early], until[held]]),
        np.concatenate([sent.sender[early], late[held]]),
    )


def _until_received(sent: Transfers, early: NDArray[np.bool_], place: int, until: I64, late: I64) -> None:
    """Gloo's span of a send lasts until its rank waits for it, long after the message left: beside a receive that
    waits, it waits for that. Moves `until` and `late` of the sends of one place."""
    waits = np.flatnonzero(early & (sent.receiver == place))
    waits = waits[np.argsort(sent.sent_from[waits], kind="stable")]
    sends = np.flatnonzero(sent.sender == place)
    found = np.searchsorted(sent.sent_from[waits], sent.sent_until[sends], "left") - 1
    sends, found = sends[found >= 0], waits[found[found >= 0]]
    longer = sent.sent_from[found] > until[sends]
    until[sends[longer]], late[sends[longer]] = sent.sent_from[found[longer]], sent.sender[found[longer]]


def split(one: Classified, keys: Keys, arrivals: Cuts, unmet: Cuts, parts: Sequence[Part]) -> tuple[Classified, Waits]:
    """The rank's intervals, those that waited starting at the end of the wait; and the waits."""
    start = one.start.copy()
    start[arrivals.row], start[unmet.row] = arrivals.at, unmet.at
    stragglers = _waits(one, keys, arrivals, lambda account: Account("straggler", account.what, account.group))
    bubbles = _bubbles(one, keys, unmet, parts)
    waits = Waits(*(np.concatenate(column) for column in zip(stragglers, *bubbles)))
    return one._replace(start=start), waits


def _waits(one: Classified, keys: Keys, cuts: Cuts, account_of: Callable[[Account], Account]) -> Waits:
    known: dict[int, int] = {}
    for number in np.unique(one.key[cuts.row]).tolist():
        account, phase = keys.pairs[number]
        known[number] = keys.number(account_of(account), phase)
    key = np.array([known[number] for number in one.key[cuts.row].tolist()], np.int32)
    return Waits(one.start[cuts.row], cuts.at, key, cuts.late)


def _bubbles(one: Classified, keys: Keys, cuts: Cuts, parts: Sequence[Part]) -> list[Waits]:
    """Before the first compute of the step a wait is warm-up, after the last one drain, else steady."""
    edges = _edges(one, keys, parts)
    piece, begin, end = cut(one.start[cuts.row], cuts.at, edges)
    some = end > begin
    piece, begin, end = piece[some], begin[some], end[some]
    stage = (np.searchsorted(edges, begin, "right") - 1) % 3
    made = []
    for number, what in enumerate((_WARMUP, _STEADY, _DRAIN)):
        rows = stage == number
        own = Cuts(cuts.row[piece[rows]], end[rows], cuts.late[piece[rows]])
        waits = _waits(one, keys, own, lambda account, what=what: Account("bubble", what, account.group))
        made.append(waits._replace(start=begin[rows]))
    return made


def _edges(one: Classified, keys: Keys, parts: Sequence[Part]) -> I64:
    """Of each part in turn: its start, its first compute's start and its last one's stop (its end without any)."""
    computes = keys.kinds()[one.key] == _COMPUTE
    start, stop = one.start[computes], one.stop[computes]
    edges: list[int] = []
    for part in parts:
        inside = (start < part.stop) & (stop > part.start)
        first, last = (start[inside].min(), stop[inside].max()) if inside.any() else (part.stop, part.stop)
        edges += [part.start, max(part.start, int(first)), min(part.stop, int(last))]
    return np.array([*edges, parts[-1].stop], np.int64)


def _by_place(surveys: Sequence[Survey], place: I64, entry: I64, at: I64, late: I64) -> list[Cuts]:
    rows = [np.flatnonzero(place == number) for number in range(len(surveys))]
    return [Cuts(one.row[entry[own]], at[own], late[own].astype(np.int32)) for one, own in zip(surveys, rows)]
