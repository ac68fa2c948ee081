"""What-if analysis: replays the steps with suppositions (see `changes`) and books them like measured ones.

A supposition is a change of a step as the user writes it, such as `compute/norm=2x`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from trainyard.change import Change
from trainyard.events import Events
from trainyard.ledger import Account, AccountChange, Ledger, diff
from trainyard.machine import Device
from trainyard.trace.align.alignment import Aligned
from trainyard.trace.align.cross_rank import Window
from trainyard.trace.measure import measure, measure_mean
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.replay import Recovery, Replay, Times

_ONE_CLOCK = "one clock"
"""A host name that all replayed ranks state, so that they count as ranks on one host, which share a clock."""


class Prediction(NamedTuple):
    """The suppositions and the predicted measurement `would`. `changes`: those of the mean ledger from measured to
    predicted; they sum to the change of its wall time, which is `recovery.ns`."""

    supposed: tuple[str, ...]
    would: MeasuredTrace
    changes: tuple[AccountChange, ...]
    recovery: Recovery

    @property
    def mean(self) -> Ledger:
        return self.would.mean


def what_if(
    measured: MeasuredTrace, changes: Sequence[str | Change], device: Device | None = None, replay: Replay | None = None
) -> Prediction:
    """Predicts the ledgers of a measured trace under all changes, applied in order.

    `changes`: suppositions as text, or changes that findings state; `device`: the device of rooflines; None for the one
    named in each rank's file; `replay`: of `measured`, if it was built before. Raises `BadInput` for changes that are
    invalid or match nothing in the traces.
    """
    supposed = tuple(Change(text=change) if isinstance(change, str) else change for change in changes)
    replay = replay or Replay(measured)
    times = replay.times(supposed, device)
    predicted = book_replay(replay, times)
    texts = tuple(change.text for change in supposed)
    return Prediction(texts, predicted, diff(measured.mean, predicted.mean), replay.recovery(times))


def book_replay(replay: Replay, times: Times) -> MeasuredTrace:
    """Books the events at replayed times like measured ones, with ledgers marked as predicted."""
    measured, events = replay.measured, _events_on_one_clock(replay, times)
    predicted_trace = measure(events, _window(replay), measured.mean.source, events[0].axis, formulas=measured.formulas)
    return _as_prediction(predicted_trace, measured.alignment.aligned)._replace(
        unread=measured.unread, read_files=measured.read_files
    )


def book_mean(replay: Replay, times: Times) -> dict[Account, int]:
    """ns in each account of the mean ledger that `book_replay` gives, without the ledgers of single ranks."""
    events = _events_on_one_clock(replay, times)
    return measure_mean(events, _window(replay), events[0].axis).by_account()


def _events_on_one_clock(replay: Replay, times: Times) -> list[Events]:
    """The replayed events of each rank. Ranks whose clocks are aligned state one host, so that booking does not solve
    for their clocks again."""
    events = replay.events(times)
    if not replay.aligned:
        return events
    return [msgspec.structs.replace(rank_events, host_name=_ONE_CLOCK) for rank_events in events]


def _window(replay: Replay) -> Window:
    return "all" if replay.is_whole_window else "steps"


def _as_prediction(would: MeasuredTrace, aligned: Aligned) -> MeasuredTrace:
    """The measurement `would` of replayed events with all ledgers marked as predicted.

    `aligned`: how the clocks of the recorded ranks were aligned, which the ledgers state too.
    """
    ranks = [
        rank._replace(ledgers=tuple(_as_predicted_ledger(ledger, aligned) for ledger in rank.ledgers))
        for rank in would.ranks
    ]
    by_rank = tuple(ledger for rank in ranks for ledger in rank.ledgers)
    return would._replace(ranks=ranks, by_rank=by_rank, mean=_as_predicted_ledger(would.mean, aligned))


def _as_predicted_ledger(ledger: Ledger, aligned: Aligned) -> Ledger:
    entries = tuple(msgspec.structs.replace(entry, how="modelled") for entry in ledger.entries)
    scope = msgspec.structs.replace(ledger.scope, aligned=aligned)
    return msgspec.structs.replace(ledger, entries=entries, basis="predicted", scope=scope)
