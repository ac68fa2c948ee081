"""Where collectives and transfers were waited in: each is cut at its last arrival, and each end of a pipeline's
transfer at the start of the other end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I32, I64
from trainyard.trace.align.matching import Meetings
from trainyard.trace.align.survey import Survey
from trainyard.trace.align.transfers import Transfers


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


def _by_place(surveys: Sequence[Survey], place: I64, entry: I64, at: I64, late: I64) -> list[Cuts]:
    rows = [np.flatnonzero(place == number) for number in range(len(surveys))]
    return [Cuts(one.row[entry[own]], at[own], late[own].astype(np.int32)) for one, own in zip(surveys, rows)]
