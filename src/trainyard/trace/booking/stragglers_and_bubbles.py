"""Straggler and bubble time: the waits inside collectives and transfers, each with its account.

A collective is split at its last arrival: until then the rank waits (straggler), afterwards the ranks communicate. Each
end of a pipeline transfer (the send and the receive) is split at the start of the other end: until then the rank waits
(bubble).

`cuts` state the split of intervals: `row` (an index into the columns of `Classified`), `at` (ns at which the wait ends)
and `late` (the index of the rank that was waited for). A part is a labelled period of the window, such as a step. A key
is the number of an (account, phase) pair in `Keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from trainyard import words
from trainyard.events import I32, I64
from trainyard.ledger import Account
from trainyard.trace.align.cross_rank import WaitCuts
from trainyard.trace.align.steps import StepPart
from trainyard.trace.booking.intervals import cut_at_bounds
from trainyard.trace.classify.kernels import Classified, Keys

_COMPUTE = list(words.KINDS).index("compute")
_WARMUP, _DRAIN, _STEADY = words.BUBBLES


class Waits(NamedTuple):
    """A rank's waits: [start, stop) booked under `key`, for the rank with index `late` to arrive."""

    start: I64
    stop: I64
    key: I32
    late: I32


def split_waits(
    classified: Classified, keys: Keys, arrivals: WaitCuts, unmet: WaitCuts, parts: Sequence[StepPart]
) -> tuple[Classified, Waits]:
    """Splits waits from a rank's intervals: (the intervals, starting at the end of their wait; the waits).

    `arrivals`: cuts of collectives at their last arrival; `unmet`: cuts of pipeline transfers at the start of the other
    end; `parts`: the parts of the window, for the stage of a bubble. Adds the keys of the waits to `keys`, in place.
    """
    start = classified.start.copy()
    start[arrivals.row], start[unmet.row] = arrivals.at, unmet.at
    stragglers = _waits_until_cuts(
        classified, keys, arrivals, lambda account: Account("straggler", account.what, account.group)
    )
    bubbles = _bubble_waits(classified, keys, unmet, parts)
    waits = Waits(*(np.concatenate(column) for column in zip(stragglers, *bubbles)))
    return classified._replace(start=start), waits


def _waits_until_cuts(
    classified: Classified, keys: Keys, cuts: WaitCuts, account_of: Callable[[Account], Account]
) -> Waits:
    """Waits from the start of each cut interval to its cut, booked under `account_of` the interval's account.

    The phase of a wait is that of its interval. Adds the keys to `keys`, in place.
    """
    wait_key: dict[int, int] = {}  # key of an interval -> key of its wait
    for key_number in np.unique(classified.key[cuts.row]).tolist():
        account, phase = keys.pairs[key_number]
        wait_key[key_number] = keys.number(account_of(account), phase)
    key = np.array([wait_key[key_number] for key_number in classified.key[cuts.row].tolist()], np.int32)
    return Waits(start=classified.start[cuts.row], stop=cuts.at, key=key, late=cuts.late)


def _bubble_waits(classified: Classified, keys: Keys, cuts: WaitCuts, parts: Sequence[StepPart]) -> list[Waits]:
    """Waits in transfers, a `Waits` for each stage: warm-up, steady state and drain of the pipeline.

    Warm-up lasts until the first compute of a step starts, drain begins when the last one stops. A wait that straddles
    stages is divided. Adds the keys to `keys`, in place.
    """
    edges = _step_edges(classified, keys, parts)
    cut, begin, end = cut_at_bounds(classified.start[cuts.row], cuts.at, edges)  # pieces of waits, `cut`: their cut
    nonempty = end > begin
    cut, begin, end = cut[nonempty], begin[nonempty], end[nonempty]
    stage = (np.searchsorted(edges, begin, "right") - 1) % 3  # three edges for each part
    waits_by_kind = []
    for stage_number, kind in enumerate((_WARMUP, _STEADY, _DRAIN)):
        rows = stage == stage_number
        stage_cuts = WaitCuts(cuts.row[cut[rows]], end[rows], cuts.late[cut[rows]])
        waits = _waits_until_cuts(
            classified, keys, stage_cuts, lambda account, kind=kind: Account("bubble", kind, account.group)
        )
        waits_by_kind.append(waits._replace(start=begin[rows]))
    return waits_by_kind


def _step_edges(classified: Classified, keys: Keys, parts: Sequence[StepPart]) -> I64:
    """Times (ns) at which the stage of the pipeline changes: three for each part, and the end of the last part.

    The three are the part's start, the start of its first compute and the stop of its last one (both the part's end if
    it has no compute).
    """
    computes = keys.kinds()[classified.key] == _COMPUTE
    start, stop = classified.start[computes], classified.stop[computes]
    edges: list[int] = []
    for part in parts:
        inside = (start < part.stop) & (stop > part.start)
        first, last = (start[inside].min(), stop[inside].max()) if inside.any() else (part.stop, part.stop)
        edges += [part.start, max(part.start, int(first)), min(part.stop, int(last))]
    return np.array([*edges, parts[-1].stop], np.int64)
