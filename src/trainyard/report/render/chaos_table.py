"""Table of a fault-injection run: how each fault was detected and recovered from."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard import words
from trainyard.record import Incident
from trainyard.report.view.view import Column, Table
from trainyard.run.chaos.score_recovery import FaultScore


def table(rows: Sequence[FaultScore], strays: Sequence[Incident] = ()) -> Table:
    """One row per fault, in the order of the plan. `strays`: incidents that match no planned fault."""
    well = sum(row.well for row in rows)
    return Table(
        title="Chaos",
        notes=(
            f"The job recovered from {well} of {len(rows)} faults with the correct culprit and the losses of the run "
            "without faults. Each fault was injected after the given step (0: before the first). In seconds: from the "
            "fault to its detection, from detection until all ranks trained again, and of training that was repeated.",
            *(f"Not a planned fault: {words.FAULTS[incident.kind].label}: {incident.says}" for incident in strays),
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
    """The incident's fault and culprit: a rank, or a node if the fault was injected into a node."""
    if not row.blamed:
        return ""
    node = row.blamed_node if row.node >= 0 else -1
    return f"{words.FAULTS[row.blamed].label} ({struck(row.blamed_rank, node)})"
