"""Who came last to collectives, how often, and what the others' waiting cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainyard.events import I64
from trainyard.trace.align import steps
from trainyard.trace.align.matching import Meetings


class Lateness(NamedTuple):
    """A rank was the last to come to `last` of the `met` collectives it was matched in, over the full steps. The
    others waited `waited_ns` for it, summed over them, and `exposed_ns` of that with nothing else to do."""

    rank: int
    last: int
    met: int
    exposed_ns: int
    waited_ns: int


class Waited(NamedTuple):
    """What one rank waited, ns, for the rank at each place, in its full steps."""

    exposed: I64
    total: I64


def lateness(
    ranks: Sequence[int], parts: Sequence[Sequence[steps.StepPart]], met: Meetings, waits: Sequence[Waited]
) -> tuple[Lateness, ...]:
    """Of each rank, the costliest first; none where no collective was matched. A collective counts where the last to
    come was in a full step."""
    late, arrived = met.late, met.arrived
    inside = np.zeros(met.size, bool)
    for place, own in enumerate(parts):
        theirs = late == place
        inside[theirs] = steps.in_full(own, arrived[theirs])
    last = np.bincount(late[inside], minlength=len(ranks))
    times = np.bincount(met.only(inside).place, minlength=len(ranks))
    exposed, total = (sum(column, np.zeros(len(ranks), np.int64)) for column in zip(*waits))
    rows = (
        Lateness(*row) for row in zip(ranks, last.tolist(), times.tolist(), exposed.tolist(), total.tolist()) if row[2]
    )
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, -row.last, row.rank)))
