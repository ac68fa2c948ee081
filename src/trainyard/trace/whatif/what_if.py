"""What-if analysis: replays the steps with suppositions (see `changes`) and books them like measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from trainyard.errors import BadInput
from trainyard.ledger import WINDOW, AccountChange, Ledger, diff
from trainyard.machine import Device
from trainyard.trace.align.alignment import Aligned
from trainyard.trace.measure import measure
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.apply_change import Supposed
from trainyard.trace.whatif.changes import NO_STRAGGLERS, parse
from trainyard.trace.whatif.dependencies import build_profile
from trainyard.trace.whatif.dependency_graph import replay_graph
from trainyard.trace.whatif.replayed_events import replay_events

_ONE_CLOCK = "one clock"


class Prediction(NamedTuple):
    """The suppositions and the predicted measurement `would`. `changes`: those of the mean ledger from measured to
    predicted; they sum to the change of its wall time."""

    supposed: tuple[str, ...]
    would: MeasuredTrace
    changes: tuple[AccountChange, ...]

    @property
    def mean(self) -> Ledger:
        return self.would.mean


def what_if(measured: MeasuredTrace, texts: Sequence[str], device: Device | None = None) -> Prediction:
    """Predicts the ledgers under all suppositions in `texts`. `device`: the device of rooflines; by default the one
    named in each rank's file. Raises `BadInput` for suppositions that are invalid or match nothing in the traces."""
    supposed = [parse(text) for text in texts]
    ranks = tuple(measured.ranks)
    aligned = measured.alignment.aligned
    if any(supposition.target == NO_STRAGGLERS for supposition in supposed) and (len(ranks) < 2 or aligned == "no"):
        raise BadInput(
            f"{NO_STRAGGLERS} compares ranks that share a clock. {measured.alignment.why}",
            "Pass the traces of all ranks of one run.",
        )
    ops_profile = build_profile([rank.events for rank in ranks], [rank.context for rank in ranks], aligned != "no")
    state = Supposed(ops_profile, measured, device)
    for supposition in supposed:
        state.suppose(supposition)
    start, stop = replay_graph(state.graph, state.length, state.lag)
    events = [replay_events(rank.events, rank_index, ops_profile, start, stop) for rank_index, rank in enumerate(ranks)]
    if aligned != "no":  # already aligned: do not solve for clocks again
        events = [msgspec.structs.replace(supposition, host_name=_ONE_CLOCK) for supposition in events]
    is_whole_window = all(part.label == WINDOW for rank in ranks for part in rank.parts)
    predicted_trace = measure(events, "all" if is_whole_window else "steps", measured.mean.source, ranks[0].events.axis)
    predicted = _as_prediction(predicted_trace, aligned)._replace(unread=measured.unread)
    return Prediction(tuple(texts), predicted, diff(measured.mean, predicted.mean))


def _as_prediction(would: MeasuredTrace, aligned: Aligned) -> MeasuredTrace:
    """The measurement of replayed events with all ledgers marked as predicted."""
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
