"""Stragglers and bubbles: the waits inside collectives and transfers, each with its account.

A collective is split at its last arrival: before it the rank waits (straggler), from it on the ranks communicate. Each
end of a pipeline transfer is split at the start of the other end: before it the rank waits (bubble).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.events import I32, I64
from trainyard.ledger import Account
from trainyard.trace.align.cross_rank import Cuts
from trainyard.trace.align.steps import StepPart
from trainyard.trace.booking.intervals import cut
from trainyard.trace.classify.kernels import Classified, Keys

_COMPUTE = list(words.KINDS).index("compute")
_WARMUP, _DRAIN, _STEADY = words.BUBBLES


class Waits(NamedTuple):
    """A rank's waits: [start, stop) booked under key, for the rank at place `late` to come."""

    start: I64
    stop: I64
    key: I32
    late: I32


def split_waits(
    one: Classified, keys: Keys, arrivals: Cuts, unmet: Cuts, parts: Sequence[StepPart]
) -> tuple[Classified, Waits]:
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


def _bubbles(one: Classified, keys: Keys, cuts: Cuts, parts: Sequence[StepPart]) -> list[Waits]:
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


def _edges(one: Classified, keys: Keys, parts: Sequence[StepPart]) -> I64:
    """Of each part in turn: its start, its first compute's start and its last one's stop (its end without any)."""
    computes = keys.kinds()[one.key] == _COMPUTE
    start, stop = one.start[computes], one.stop[computes]
    edges: list[int] = []
    for part in parts:
        inside = (start < part.stop) & (stop > part.start)
        first, last = (start[inside].min(), stop[inside].max()) if inside.any() else (part.stop, part.stop)
        edges += [part.start, max(part.start, int(first)), min(part.stop, int(last))]
    return np.array([*edges, parts[-1].stop], np.int64)
