"""Run jobs in interleaved rounds, each of which runs every job once, and reuse their runs of earlier commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import SystemRandom

from trainyard import plugins, units
from trainyard.api.gate_sides import load_complete
from trainyard.api.run_jobs import run as run_job
from trainyard.errors import BadJob, RankDied
from trainyard.job import Job
from trainyard.record import DeviceSeen, Provenance, Run
from trainyard.run.local.host_devices import find_devices
from trainyard.run.local.rank_environment import job_environment, variable_values
from trainyard.run.record import provenance
from trainyard.run.session import Session

_SAME = ("code", "packages", "driver", "environment", "host")
"""Fields of the provenance that a reused run has in common with one that is started now."""


@dataclass(kw_only=True)
class JobRuns:
    """The complete runs of a job, by round, of which an earlier command made `reused`. `failure`: why a round has no
    run; empty if none failed."""

    runs: list[Run] = field(default_factory=list)
    reused: int = 0
    failure: str = ""


def devices_here(session: Session) -> tuple[DeviceSeen, ...]:
    """The devices that the runs of the session use."""
    if session.devices is not None:
        return tuple(session.devices)
    return find_devices(plugins.load_all("vendors"))


def run_rounds(jobs: Mapping[str, Job], rounds: int, session: Session, *, fresh: bool) -> dict[str, JobRuns]:
    """Runs each of `jobs` (tag -> job) once in each round, in random order, with the tag `TAG.ROUND`.

    `fresh`: ignore runs of earlier commands; otherwise those of the same job on the same host and devices, with the
    same code, packages and environment, count as the first rounds. After a job is refused or its ranks die, only the
    others continue. An interrupt keeps the complete runs, which the same command reuses.
    """
    results = {tag: JobRuns() for tag in jobs} if fresh else _find_runs(jobs, rounds, session)
    if reused := sum(result.reused for result in results.values()):
        session.say(f"reusing {units.counted(reused, 'run')} of an earlier command; --fresh runs them again")
    try:
        for number in range(1, rounds + 1):
            order = [tag for tag, result in results.items() if len(result.runs) < number and not result.failure]
            SystemRandom().shuffle(order)
            for tag in order:
                outcome = _run_once(jobs[tag], results[tag], replace(session, tag=f"{tag}.{number}", say=_ignore))
                session.say(f"round {number}/{rounds}, {tag}: {outcome}")
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("Complete runs are kept: the same command reuses them.")
        raise
    return results


def _ignore(_: str) -> None:
    """Prints nothing."""


def _run_once(job: Job, result: JobRuns, session: Session) -> str:
    """Runs the job, adds its run or the reason of its failure to `result`, and describes it in a few words."""
    try:
        measured = run_job(job, session=session)
    except (BadJob, RankDied) as error:
        result.failure = str(error)
        return f"failed: {error.message}"
    run = session.store.load(measured.id)
    if not run.ledgers or not measured.summary.step_ns:
        result.failure = f"Run {run.id} has no ledger or no timed steps."
        return f"failed: {result.failure}"
    result.runs.append(run)
    return f"{units.show_time(measured.summary.step_ns)} per step, run {measured.id}"


def _find_runs(jobs: Mapping[str, Job], rounds: int, session: Session) -> dict[str, JobRuns]:
    """For each job, at most `rounds` stored runs that were made in the present environment, the oldest first. All
    `jobs` have the same number of ranks."""
    devices, vendors = devices_here(session), plugins.load_all("vendors")
    any_job = next(iter(jobs.values()))
    variables = variable_values(job_environment(any_job, None, vendors, devices[0].vendor))
    here = provenance.gather(devices, vendors, variables)
    names = {job.name for job in jobs.values()}
    rows = [row for row in session.store.rows() if row.state == "complete" and row.job in names]
    loaded = (run for run in load_complete(session.store, rows, session.say) if run.ledgers)
    stored = sorted((run for run in loaded if _is_same_environment(run.provenance, here)), key=lambda run: run.started)
    results: dict[str, JobRuns] = {}
    for tag, job in jobs.items():
        runs = [run for run in stored if run.job == job][:rounds]
        results[tag] = JobRuns(runs=runs, reused=len(runs))
    return results


def _is_same_environment(recorded: Provenance, here: Provenance) -> bool:
    """Whether a run was made on this host and some of its devices, with the code, packages and variables of now."""
    used, present = ({(device.vendor, device.name) for device in each.devices} for each in (recorded, here))
    return used <= present and all(getattr(recorded, part) == getattr(here, part) for part in _SAME)
