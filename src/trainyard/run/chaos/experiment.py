"""Runs a job twice, undisturbed and under a plan of faults, and scores how it took them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, Preempted, TrainyardError, WrongRunState
from trainyard.job import Checkpoint, Job, Recovery
from trainyard.launch.supervisor import event_log
from trainyard.record import Incident, Run
from trainyard.run.chaos import chaos_files
from trainyard.run.chaos.fault_plan import FaultPlan
from trainyard.run.chaos.score_recovery import FaultScore, score, strays
from trainyard.run.local import harness
from trainyard.run.session import Session
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import write_digests

SCHEMA = "trainyard/chaos/1"


class ChaosResult(NamedTuple):
    """`strays`: incidents of no planned fault. `failure`: what ended the disturbed run, where it was not got over."""

    run: Run
    rows: tuple[FaultScore, ...]
    strays: tuple[Incident, ...]
    against: str
    failure: TrainyardError | None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """chaos.json. `against`: the id of the run without faults."""

    schema: str
    against: str
    plan: FaultPlan
    rows: tuple[FaultScore, ...]
    strays: tuple[Incident, ...]


def execute(
    job: Job,
    job_text: str,
    plan: FaultPlan,
    session: Session,
    *,
    against: str | None = None,
    tag: str = "",
) -> ChaosResult:
    """Runs `job` undisturbed (or takes the stored run `against`), then under `plan`; the score is stored with the run,
    whose name is `tag`.

    A job that is pre-empted is gone on with at once, as often as the plan pre-empts it. Raises `BadInput` for a plan
    that does not fit the job, and as `harness.execute` where nothing could be started.
    """
    plan.check(job)
    if against is not None:
        calm = comparable(session.store.load(against), job)
    else:
        session.say("first without faults:")
        calm = harness.execute(job, job_text, session)
        session.say(f"and now with {len(plan.fault)}:")
    begun: list[Path] = []

    def arm(folder: Path) -> None:
        begun.append(folder)
        chaos_files.arm(folder, plan)

    failure: TrainyardError | None = None
    for turn in range(plan.preempts + 1):
        try:
            if turn:
                run = harness.resume(begun[0].name, session)
            else:
                run = harness.execute(job, job_text, session, begun=arm, tag=tag)
        except TrainyardError as error:
            if not begun or not begun[0].exists():
                raise  # nothing was started
            run, failure = session.store.load(begun[0].name), error
            if isinstance(error, Preempted) and turn < plan.preempts:
                continue
        else:
            failure = None
        break
    folder = begun[0]
    injected = chaos_files.injected_faults(folder)
    rows, others = score(run, calm, plan, injected, event_log.read(folder)), strays(run, plan, injected)
    told = Score(schema=SCHEMA, against=calm.id, plan=plan, rows=rows, strays=others)
    write_whole(folder / chaos_files.SCORE, msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")
    write_digests(folder)  # the score is kept with the run
    return ChaosResult(run, rows, others, calm.id, failure)


def comparable(calm: Run, job: Job) -> Run:
    """`calm` itself. Raises `BadInput` for a run whose losses say nothing of the job's."""
    if calm.state != "complete":
        raise WrongRunState(f"run {calm.id} is {calm.state}: it cannot be compared with.")
    if _training(calm.job) != _training(job):
        raise BadInput(f"run {calm.id} is of another training than the job.", "Leave --against out: one is made first.")
    if restarts := max((sample.attempt for sample in calm.samples), default=0):
        raise BadInput(f"run {calm.id} cannot be the reference: it was itself restarted (restarts = {restarts}).")
    return calm


def _training(job: Job) -> Job:
    """What its losses follow from."""
    return replace(job, name="", machine="", checkpoint=Checkpoint(), recovery=Recovery())
