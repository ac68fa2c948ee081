"""Run a job twice, without faults and under a fault plan, and score its recovery."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, Preempted, TrainyardError, WrongRunState
from trainyard.job import Checkpoint, Job, Recovery
from trainyard.launch.supervisor import event_log
from trainyard.record import Incident, Run
from trainyard.run.chaos import chaos_files
from trainyard.run.chaos.fault_plan import FaultPlan
from trainyard.run.chaos.score_recovery import FaultScore, score_faults, strays
from trainyard.run.local import harness
from trainyard.run.local.rank_facts import read_facts
from trainyard.run.session import Session
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import write_digests

SCHEMA = "trainyard/chaos/2"


class ChaosScore(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of chaos.json. `reference`: id of the run without faults; `faults`: the score of each planned fault;
    `unplanned`: incidents that belong to no planned fault; `backend`: that of the ranks' collectives, such as gloo,
    empty for a single rank or a run that did not reach its end."""

    reference: str
    plan: FaultPlan
    faults: tuple[FaultScore, ...]
    unplanned: tuple[Incident, ...]
    backend: str = ""
    schema: Literal["trainyard/chaos/2"] = SCHEMA


class ChaosResult(NamedTuple):
    """Result of a chaos experiment: the run with faults and its score. `failure`: the error that ended the run, if it
    did not recover."""

    run: Run
    score: ChaosScore
    failure: TrainyardError | None


def execute(
    job: Job,
    job_text: str,
    plan: FaultPlan,
    session: Session,
    *,
    against: str | None = None,
) -> ChaosResult:
    """Run `job` without faults (or load the stored run `against`), then under `plan`; store the score with that run.

    `job_text`: the job file of `job`, which is stored with the runs; `against`: name of a run without faults, None to
    make one. A pre-empted job is resumed at once, as often as the plan pre-empts it. The session's tag names the run
    with faults. Raises `BadInput` if the plan does not fit the job, and the errors of `harness.execute` if nothing
    could be started.
    """
    plan.check(job)
    if against is not None:
        reference = comparable(session.store.load(against), job)
    else:
        session.say("Run 1 of 2: no faults.")
        reference = harness.execute(job, job_text, dataclasses.replace(session, tag=""))
        session.say(f"Run 2 of 2: {len(plan.fault)} fault{'s' * (len(plan.fault) > 1)}.")
    run_folders: list[Path] = []  # that of the run with faults, once it exists

    def arm(folder: Path) -> None:
        """Called before the ranks start: writes the plan into the run's folder."""
        run_folders.append(folder)
        chaos_files.write_plan(folder, plan)

    failure: TrainyardError | None = None
    for attempt in range(plan.preempts + 1):
        try:
            if attempt:
                run = harness.resume(run_folders[0].name, dataclasses.replace(session, tag=""))
            else:
                run = harness.execute(job, job_text, session, begun=arm)
        except TrainyardError as error:
            if not run_folders or not run_folders[0].exists():
                raise  # nothing was started
            run, failure = session.store.load(run_folders[0].name), error
            # A planned pre-emption ended the attempt: resume the run.
            if isinstance(error, Preempted) and attempt < plan.preempts:
                continue
        else:
            failure = None
        break
    folder = run_folders[0]
    injected = chaos_files.injected_faults(folder)
    chaos_score = ChaosScore(
        reference=reference.id,
        plan=plan,
        faults=score_faults(run, reference, plan, injected, event_log.read(folder)),
        unplanned=strays(run, plan, injected),
        backend=next((facts.backend for facts in read_facts(folder)), ""),
    )
    write_whole(folder / chaos_files.SCORE, msgspec.json.format(msgspec.json.encode(chaos_score), indent=1) + b"\n")
    write_digests(folder)  # the score is kept with the run
    return ChaosResult(run, chaos_score, failure)


def comparable(reference: Run, job: Job) -> Run:
    """Return `reference` if its losses can serve as the reference for `job`.

    Raises `WrongRunState` for an incomplete run, `BadInput` for one that trained something else or was restarted.
    """
    if reference.state != "complete":
        raise WrongRunState(f"run {reference.id} is {reference.state}; the reference run must be complete.")
    if _loss_determining_job(reference.job) != _loss_determining_job(job):
        raise BadInput(
            f"run {reference.id} trained something else than this job.",
            "Omit --against to run the job without faults first.",
        )
    if restarts := max((sample.attempt for sample in reference.samples), default=0):
        raise BadInput(f"run {reference.id} cannot be the reference: it was itself restarted (restarts = {restarts}).")
    return reference


def _loss_determining_job(job: Job) -> Job:
    """The parts of the job that determine its losses."""
    return replace(job, name="", machine="", checkpoint=Checkpoint(), recovery=Recovery())
