"""The head of a job on several hosts: starts the run, or resumes it if an earlier attempt of the job has begun it."""

from __future__ import annotations

from msgspec.structs import replace

from trainyard import job_file
from trainyard.errors import BadInput, BadJob, RankDied
from trainyard.formats import toml
from trainyard.job import Job
from trainyard.launch.supervisor import failure_report
from trainyard.record import Run
from trainyard.run.local import harness
from trainyard.run.nodes.hosts import Hosts
from trainyard.run.session import Session


def execute(job: Job, job_text: str, session: Session) -> Run:
    """Run `job` on the hosts of the session, or resume the run that an earlier attempt of the same job id began; return
    the stored run. If the supervisor is killed, the run is resumed, as often as the job may restart.

    `job_text`: the job file of `job`. Returns a complete run of this job id at once. Raises `BadInput` if the run of
    this job id is of another job, `BadJob` if the job cannot run on these hosts, and the errors of `harness.execute`.
    """
    hosts = session.hosts
    if hosts is None:
        raise BadInput("the session has no hosts.")
    job, job_text = on_nodes(job, job_text, hosts.nodes)
    session.say(recovery_notice(job, hosts))
    folder = session.store.runs / hosts.run_id
    for restarts_left in range(job.recovery.max_restarts, -1, -1):
        try:
            if not (folder / "run.json").exists():
                return harness.execute(job, job_text, session)
            run = session.store.load(hosts.run_id)
            if run.job != job:
                raise BadInput(
                    f"job id {hosts.job_id!r} belongs to run {run.id}, which is of another job.",
                    "Use another --job-id.",
                )
            if run.state == "complete":
                session.say(f"run {run.id} of job {hosts.job_id} is complete already")
                return run
            return harness.resume(run.id, session)
        except RankDied as error:
            if not restarts_left or failure_report.read(folder) is not None:  # the supervisor judged the job
                raise
            session.say(f"{error.message} The run is resumed.")
    raise AssertionError("the last attempt returns or raises")


def on_nodes(job: Job, job_text: str, nodes: int) -> tuple[Job, str]:
    """Return the job and its text for this number of nodes, which a job file need not state.

    Raises `BadJob` if it states another number.
    """
    stated = job.recovery.nodes
    if stated == nodes:
        return job, job_text
    if stated != 1:
        raise BadJob(
            f"nodes = {stated} at $.recovery, but the job was started on {nodes} nodes.",
            f"Start it on {stated} nodes, or leave nodes out of the job file.",
        )
    document = toml.loads(job_file.complete(job_text, job))
    document["recovery"] = {**document.get("recovery", {}), "nodes": nodes}
    return replace(job, recovery=replace(job.recovery, nodes=nodes)), toml.dumps(document)


def recovery_notice(job: Job, hosts: Hosts) -> str:
    """A sentence on how this job recovers from the loss of a rank or a node, for before its start.

    Raises `BadJob` for a job that saves checkpoints without a folder that all nodes share.
    """
    if job.checkpoint.interval and hosts.shared is None and hosts.nodes > 1:
        raise BadJob(
            f"interval = {job.checkpoint.interval} at $.checkpoint, but the nodes share no folder: each node would "
            "have a part of each checkpoint, and no node could resume from it.",
            "Pass --shared DIR, a folder that all nodes can write to, or set interval = 0.",
        )
    restarts = job.recovery.max_restarts
    fewer = f" on at least {job.recovery.min_nodes} nodes" if job.recovery.min_nodes else " on as many nodes"
    begin = (
        f"from its last checkpoint (after every {job.checkpoint.interval} steps, in {hosts.shared})"
        if job.checkpoint.interval
        else "from its first step, as it saves no checkpoints"
    )
    if not restarts:
        return f"a lost rank or node ends the job (max_restarts = 0); started again with its job id, it resumes {begin}"
    return f"after the loss of a rank or node the job restarts {begin},{fewer}, at most {restarts} times"
