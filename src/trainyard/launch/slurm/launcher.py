"""The launcher `slurm`: renders a batch script, submits it with `sbatch`, and reads the job's state from `scontrol`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainyard.errors import EnvironmentFailed, PlaceUnwritable, SchedulerFailed, UnknownName
from trainyard.launch.launch_spec import TOKEN
from trainyard.launch.request_checks import check_request
from trainyard.launch.scheduler_tool import run_tool
from trainyard.launch.slurm.batch_script import STOP_FILE, render_batch_script
from trainyard.launch.slurm.job_state import SlurmJob, parse_accounting, parse_jobs, status_of
from trainyard.launch.supervisor.signed_store import draw_token
from trainyard.launch_request import JobStatus, LaunchRequest

SCRIPT = "job.sbatch"
_ID = re.compile(r"[0-9]{1,12}\Z")
_INSTALL = "Run this on a login node of the cluster, or install Slurm's client tools (Debian: slurm-client)."
_NEXT_STEPS = {
    "munge": "Start munged on this host, with the key of the cluster (systemctl start munge).",
    "authentication": "Check that munged runs on this host with the key of the cluster, and that clocks agree.",
    "unable to contact slurm controller": "Check that slurmctld runs, and SLURM_CONF or /etc/slurm/slurm.conf.",
    "unrecognized option": "`sbatch --help` lists the options that --option can set.",
    "invalid partition": "`sinfo` lists the partitions; pass one with --partition.",
    "invalid account": "`sacctmgr show user $USER -s` lists your accounts; pass one with --account.",
    "invalid qos": "`sacctmgr show qos` lists the QOS; pass one with --qos.",
    "invalid feature": "`sinfo -o %f` lists the features of the nodes; change --constraint.",
    "generic resource": "The nodes have no such accelerators in Slurm's configuration; change --accelerators.",
    "node count": "`sinfo` lists the nodes of each partition; use fewer nodes.",
    "requested node configuration": "No node has what is requested; `sinfo -N -l` lists the nodes.",
    "too many jobs": "The queue is full or your limit is reached: wait for a job to end. `squeue --me` lists yours.",
    "limit": "A limit of your account or QOS is reached: wait, or request less. `sacctmgr show assoc` lists limits.",
    "access/permission denied": "You may not do this: only the owner of a job or an administrator may.",
    "host name": "Check SLURM_CONF: it names a controller that this host does not know.",
}


class Slurm:
    """Jobs on a cluster that Slurm schedules."""

    starts = "nodes"

    def render(self, request: LaunchRequest) -> Mapping[str, str]:
        """Return the batch script as `job.sbatch`. Raises `BadInput` for a request that Slurm cannot take."""
        check_request(request)
        return {SCRIPT: render_batch_script(request)}

    def submit(self, files: Path) -> str:
        """Submit `job.sbatch` in the folder `files`; return Slurm's job id.

        The job's environment is that of this process, whatever $SBATCH_EXPORT is, plus the token by which the job's
        nodes know each other. Raises `MissingProgram` without Slurm, `PlaceUnwritable`, or `SchedulerFailed` with
        Slurm's message.
        """
        try:
            (files / "logs").mkdir(exist_ok=True)
            (files / STOP_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise PlaceUnwritable(
                f"{files} cannot be written: {error.strerror}.", "Set TRAINYARD_STORE to a folder that all nodes share."
            ) from error
        token = {TOKEN: draw_token()}
        printed = _run(["sbatch", "--parsable", "--export=ALL", str(files / SCRIPT)], token)
        id = printed.strip().partition(";")[0]
        if not _ID.match(id):
            raise EnvironmentFailed(f"sbatch printed {printed.strip()!r}, which is not a job id.")
        return id

    def status(self, id: str) -> JobStatus:
        """Return the status of a job, from the controller or, if that has forgotten it, from Slurm's accounting."""
        return status_of(_jobs(id))

    def cancel(self, id: str, *, save: bool = False) -> None:
        """End the job with `scancel`. `save`: send SIGTERM to its nodes; it saves its state, leaves and is not
        requeued."""
        jobs = _jobs(id)
        if status_of(jobs).is_over:
            return
        with suppress(OSError):
            (Path(jobs[0].fields.get("Command", "")).parent / STOP_FILE).touch()
        _run(["scancel", *(["--signal=TERM"] if save and status_of(jobs).state == "running" else []), id])


def _run(words: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Run a tool of Slurm; return its stdout. `variables`: as in `run_tool`."""
    return run_tool(words, install=_INSTALL, next_steps=_NEXT_STEPS, variables=variables)


def _jobs(id: str) -> list[SlurmJob]:
    """What Slurm reports on a job: the job, its components or its elements. Raises `UnknownName`."""
    if not _ID.match(id):
        raise UnknownName(f"{id!r} is not the id of a Slurm job.", "Ids are decimal numbers, as `squeue` lists them.")
    try:
        jobs = parse_jobs(_run(["scontrol", "show", "job", id, "--oneliner"]))
    except SchedulerFailed as error:
        if "invalid job id" not in error.output.lower():
            raise
        jobs = []
    if not jobs:
        fields = "JobIDRaw,State,ExitCode,NodeList,Timelimit"
        with suppress(SchedulerFailed):  # accounting may be disabled
            jobs = parse_accounting(_run(["sacct", "-X", "-j", id, "--parsable2", "--noheader", f"--format={fields}"]))
    if not jobs:
        raise UnknownName(f"Slurm does not know the job {id}.", "It forgets a job minutes after its end (MinJobAge).")
    return jobs
