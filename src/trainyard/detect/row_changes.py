"""Changes of single intervals, with which a replay prices the findings that no other syntax can express."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainyard.booked import Booked
from trainyard.change import WITHOUT, ChangedRows, RowChange
from trainyard.events import I64

F64 = NDArray[np.float64]
_NO_ROWS = np.empty(0, np.int64)


def row_change(
    name: str,
    ranks: Sequence[Booked],
    *,
    rows: Sequence[I64] = (),
    remaining: float | Sequence[F64] = 0.0,
    idle: Sequence[I64] = (),
    idle_removed: Sequence[float] = (),
) -> RowChange:
    """The change of the steps without the cause that a rule reports, for a replay.

    `name`: identifies the finding: the rule's name and, if it has several findings, a suffix. The other arguments have
    one element for each of `ranks`; an empty sequence means that nothing changes.
    `rows`: rows of the interval columns whose work becomes shorter. `remaining`: the fraction of its time that
    remains: one number for all, or an array for each rank with one value per row.
    `idle`: rows of `Booked.idle` that become shorter. `idle_removed`: the fraction of them that vanishes; by default
    all.
    """
    changed: list[ChangedRows] = []
    for index, rank in enumerate(ranks):
        work = rows[index] if rows else _NO_ROWS
        idle_rows = np.sort(idle[index]) if idle else _NO_ROWS
        fraction = np.full(len(work), remaining) if isinstance(remaining, float | int) else remaining[index]
        idle_ns = rank.idle.stop[idle_rows] - rank.idle.start[idle_rows]
        if idle_removed:
            idle_ns = np.floor(idle_ns * idle_removed[index]).astype(np.int64)
        changed.append(
            ChangedRows(
                rank=rank.events.rank,
                rows=work,
                remaining=fraction,
                idle_start=rank.idle.start[idle_rows],
                idle_stop=rank.idle.start[idle_rows] + idle_ns,
                ended_by=rank.idle.next[idle_rows].astype(np.int64),
            )
        )
    return RowChange(text=f"{WITHOUT}{name}", ranks=tuple(changed))
