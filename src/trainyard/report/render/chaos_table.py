"""How a job took the faults that were made in it, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import words
from trainyard.record import Incident
from trainyard.report.view.view import Column, Table
from trainyard.run.chaos.score_recovery import FaultScore


def table(rows: Sequence[FaultScore], strays: Sequence[Incident] = ()) -> Table:
    """One row a fault, in the order of the plan. `strays`: incidents of none of them."""
    well = sum(row.well for row in rows)
    return Table(
        title="Chaos",
        notes=(
            f"{well} of {len(rows)} faults were got over, with the culprit named and the losses of the run without "
            "faults. Each was made after the step named (0: before the first). In seconds: from the fault to its being "
            "noticed, from then until all ranks trained again, and of training that was done again.",
            *(f"Of no planned fault: {words.FAULTS[incident.kind].label}: {incident.says}" for incident in strays),
        ),
        columns=(
            Column(head="fault"),
            Column(head="after step", digits=0),
            Column(head="found as", prose=True),
            Column(head="detect", digits=2),
            Column(head="restart", digits=2),
            Column(head="lost", digits=2),
            Column(head="outcome", prose=True),
            Column(head="losses", prose=True),
        ),
        rows=tuple(
            (
                f"{words.INJECTIONS[row.kind].label} ({struck(row.rank, row.node)})",
                row.made if row.made >= 0 else None,
                ("" if row.right else "wrong: ") + (blamed(row) or "nothing"),
                row.detect_s if row.blamed else None,
                row.restart_s,
                row.lost_s,
                row.outcome,
                row.losses + (f" by {row.loss_error:.1e}" if row.loss_error else ""),
            )
            for row in rows
        ),
    )


def struck(rank: int, node: int) -> str:
    """`rank 1`, `node 0` or `the job`."""
    return f"rank {rank}" if rank >= 0 else f"node {node}" if node >= 0 else "the job"


def blamed(row: FaultScore) -> str:
    """Of an incident that names a rank and its node, whichever the fault struck."""
    if not row.blamed:
        return ""
    node = row.blamed_node if row.node >= 0 else -1
    return f"{words.FAULTS[row.blamed].label} ({struck(row.blamed_rank, node)})"
