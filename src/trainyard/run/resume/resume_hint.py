"""Messages on how to resume a run that ended early. No torch."""

from __future__ import annotations

from pathlib import Path

from trainyard.job import Job
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore


def saved_steps(folder: Path) -> int:
    """The number of steps completed at the newest checkpoint in a run's folder; 0 if there is none."""
    return CheckpointStore(folder).newest() + 1


def resume_sentence(folder: Path, job: Job, job_id: str = "") -> str:
    """A sentence on how to resume a run, and the step from which it resumes. `job_id`: id of a job on several hosts,
    whose nodes are started again; empty if `trainyard run resume` resumes it."""
    command, steps = f"`trainyard run resume {folder.name}`", saved_steps(folder)
    if job_id:
        command = f"the job, if all nodes start again with the job id {job_id},"
    if steps:
        return f"{command} resumes from its checkpoint after step {steps} of {job.measure.in_all}."
    reason = "none was saved yet" if job.checkpoint.interval else "set [checkpoint] interval = N to save some"
    return f"It has no checkpoint ({reason}): {command} starts from the beginning."


def describe_resume_point(steps: int, job: Job) -> str:
    """The point from which training resumes."""
    return f"resuming from step {steps} of {job.measure.in_all}" if steps else "restarting from the beginning"
