"""What a user is told of a run that ended early: how it is gone on with. No torch."""

from __future__ import annotations

from pathlib import Path

from trainyard.job import Job
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore


def saved(folder: Path) -> int:
    """How many steps had ended when the last checkpoint in a run's folder was saved; 0 where there is none."""
    return CheckpointStore(folder).newest() + 1


def way(folder: Path, job: Job) -> str:
    """A sentence: the command, and from where it goes on."""
    command, steps = f"`trainyard run --resume {folder.name}`", saved(folder)
    if steps:
        return f"{command} goes on from its checkpoint after step {steps} of {job.measure.in_all}."
    why = "none was saved yet" if job.checkpoint.every else "[checkpoint] every = N saves some"
    return f"It has no checkpoint ({why}): {command} begins anew."


def where(steps: int, job: Job) -> str:
    """From where training goes on."""
    return f"going on from step {steps} of {job.measure.in_all}" if steps else "going on from the beginning"
