"""A new run that begins where another one stands, with its weights, optimizer and place in the data.

How a step is computed may change: layout, precision, micro-batches, learning rate. What a step is may not.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trainyard.errors import BadInput, BadJob, EnvironmentFailed
from trainyard.job import SCRIPT, Job
from trainyard.record import Origin, Run
from trainyard.run.local import harness
from trainyard.run.session import Session
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.checkpoint.same_training import differences


def execute(name: str, job: Job, job_text: str, session: Session, *, tag: str = "") -> Run:
    """Runs `job` from the last good checkpoint of the run `name`, which stays as it is, as a new run.

    Raises `BadJob` where the job is of another training than the run, or has no step left to take; `BadInput` for a run
    without a good checkpoint; and as `harness.execute`.
    """
    source, folder = session.store.load(name), session.store.find(name)
    check(source, job)
    checkpoints = CheckpointStore(folder)
    manifest, rejected = checkpoints.last_good()
    for said in rejected:
        session.say(f"{said}.")
    if manifest is None:
        raise BadInput(f"run {source.id} has no good checkpoint to begin with.", "Run the job without --resume.")
    steps = manifest.step + 1
    if job.measure.in_all <= steps:
        raise BadJob(
            f"run {source.id} stands after step {steps}, but the job takes {job.measure.in_all} in all: none is left.",
            "Raise steps or repeats at $.measure.",
        )
    session.say(f"beginning with the checkpoint of run {source.id} after step {steps}")
    begun = partial(_adopt, checkpoints, manifest.step)
    origin = Origin(run=source.id, step=manifest.step)
    return harness.execute(job, job_text, session, begun=begun, tag=tag, origin=origin)


def check(source: Run, job: Job) -> None:
    """Raises `BadJob` with each field that differs, and both its values."""
    if SCRIPT in (source.job.workload, job.workload):
        raise BadInput(f"run {source.id} is of a command of your own.", "Only what a job trains is gone on with.")
    if wrong := list(differences(source.job, job)):
        raise BadJob(
            f"the job is of another training than run {source.id}: {'; '.join(wrong)}.",
            "Layout, precision, micro-batches, learning rate, what is measured and what is saved may differ.",
        )


def _adopt(source: CheckpointStore, step: int, folder: Path) -> None:
    try:
        CheckpointStore(folder, "adopted").adopt(source, step)
    except OSError as error:
        why = error.strerror or error
        raise EnvironmentFailed(f"{source.folder(step)} cannot be taken into {folder}: {why}.") from error
