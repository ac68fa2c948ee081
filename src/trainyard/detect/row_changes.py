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
    """The change of the steps without the cause that a rule reports. `name`: that of the rule, and what distinguishes
    the finding from others of the rule. For each of `ranks`: `rows`, the intervals of work of which the fraction
    `remaining` (one for all, or one array for each rank) remains, and `idle`, the rows of `Booked.idle` of which the
    fraction `idle_removed` (by default all) vanishes."""
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
