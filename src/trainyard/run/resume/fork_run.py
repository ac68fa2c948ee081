"""Fork a run: a new run that starts from another run's checkpoint, with its weights, optimizer and data position.

The way a step is computed may change: layout, precision, micro-batches, learning rate. The training itself may not.
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


def execute(name: str, job: Job, job_text: str, session: Session) -> Run:
    """Run `job` as a new run from the last good checkpoint of the run `name`, which is not modified.

    `job_text`: the job file of `job`, which is stored with the run; `session`: where runs are stored and reported.
    Returns the stored new run. Raises `BadJob` if the job's training differs from the run's or no step is left,
    `BadInput` if the run has no good checkpoint, and the errors of `harness.execute`.
    """
    source, folder = session.store.load(name), session.store.find(name)
    check(source, job)
    checkpoints = CheckpointStore(folder)
    manifest, rejected = checkpoints.last_good()
    for message in rejected:
        session.say(f"{message}.")
    if manifest is None:
        raise BadInput(
            f"run {source.id} has no good checkpoint to start from.",
            "Run the job from its beginning: `trainyard run JOB.toml`.",
        )
    steps_taken = manifest.step + 1  # a manifest states the index of the last step before the checkpoint
    if job.measure.in_all <= steps_taken:
        raise BadJob(
            f"run {source.id} is at step {steps_taken}, but the job has {job.measure.in_all} steps: none is left.",
            "Increase steps or repeats at $.measure.",
        )
    session.say(f"starting from the checkpoint of run {source.id} after step {steps_taken}")
    begun = partial(_adopt, checkpoints, manifest.step)
    origin = Origin(run=source.id, step=manifest.step)
    return harness.execute(job, job_text, session, begun=begun, origin=origin)


def check(source: Run, job: Job) -> None:
    """Raise `BadJob` if the training of `job` differs from that of the run `source`, with each differing field and both
    its values; `BadInput` for a script's run."""
    if SCRIPT in (source.job.workload, job.workload):
        raise BadInput(f"run {source.id} ran a command of your own.", "Only runs of a job file can be forked.")
    if wrong := list(differences(source.job, job)):
        raise BadJob(
            f"the job's training differs from that of run {source.id}: {'; '.join(wrong)}.",
            "Layout, precision, micro-batches, learning rate, [measure] and [checkpoint] may differ.",
        )


def _adopt(source: CheckpointStore, step: int, folder: Path) -> None:
    """Copy the checkpoint after `step` from `source` into the new run's folder `folder`. Raises `EnvironmentFailed`."""
    try:
        CheckpointStore(folder, "adopted").copy_from(source, step)
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentFailed(f"{source.folder(step)} cannot be copied into {folder}: {reason}.") from error
