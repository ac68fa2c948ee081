"""Table of a run with injected faults: how each fault was detected and recovered from."""

from __future__ import annotations

from trainyard import units, words
from trainyard.report.view.view import Column, Table
from trainyard.run.chaos.experiment import ChaosScore
from trainyard.run.chaos.score_recovery import FaultScore

_MOST_FAULTS = 20
"""Number of faults on one screen."""


def headline(score: ChaosScore) -> str:
    """A sentence on the number of faults from which the job recovered correctly."""
    correct = sum(row.correct for row in score.faults)
    return (
        f"The job recovered from {correct} of {units.counted(len(score.faults), 'fault')} with the correct culprit "
        f"and the losses of run {score.reference}, which had no faults"
    )


def table(score: ChaosScore, full: bool = True) -> Table:
    """One row per fault, in the order of the plan; one screen of them unless `full`, those that went wrong first."""
    rows = score.faults
    if not full and len(rows) > _MOST_FAULTS + 1:
        rows = tuple(sorted(rows, key=lambda row: row.correct)[:_MOST_FAULTS])
    more = f"{len(score.faults) - len(rows)} more faults with --full." if len(rows) < len(score.faults) else ""
    explained = (
        "Each fault was injected after the given step (0: before the first). Times: from the fault to its detection, "
        "from detection until all ranks trained again, and of training that was repeated."
    )
    backend = f"The ranks communicate with {score.backend}." if score.backend else ""
    # `strays`: incidents that no planned fault explains.
    strays = (
        f"Not a planned fault: {words.FAULTS[incident.kind].label}: {incident.summary}"
        for incident in score.unplanned[: None if full else 3]
    )
    return Table(
        title="Fault",
        notes=tuple(filter(None, (more, backend, explained, *strays))),
        columns=(
            Column(title="fault"),
            Column(title="after step", digits=0, optional=True),
            Column(title="reported as", prose=True),
            Column(title="detect, s", digits=2),
            Column(title="restart, s", digits=2),
            Column(title="lost, s", digits=2),
            Column(title="outcome", id=True),
            Column(title="losses", id=True),
        ),
        rows=tuple(
            (
                f"{words.ALL_INJECTIONS[row.kind].label} ({target(row.rank, row.node)})",
                row.injected_step if row.injected_step >= 0 else None,
                ("" if row.correctly_blamed else "wrong: ") + (blamed(row) or "nothing"),
                row.detect_s if row.blamed else None,
                row.restart_s,
                row.lost_s,
                row.outcome,
                row.losses + (f" by {row.loss_error:.1e}" if row.loss_error else ""),
            )
            for row in rows
        ),
    )


def target(rank: int, node: int) -> str:
    """`rank 1`, `node 0` or `the job`."""
    return f"rank {rank}" if rank >= 0 else f"node {node}" if node >= 0 else "the job"


def blamed(row: FaultScore) -> str:
    """The incident's fault and culprit: a rank, or a node if the fault was injected into a node."""
    if not row.blamed:
        return ""
    node = row.blamed_node if row.node >= 0 else -1
    return f"{words.FAULTS[row.blamed].label} ({target(row.blamed_rank, node)})"
