"""`launch` and its companions: start a job on a cluster, and query, read and end what was started."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainyard.api.run_jobs import JobSource, read_job
from trainyard.launch.log_tail import last_lines
from trainyard.launch.node_logs import node_logs
from trainyard.launch.scheduler_tool import run_tool
from trainyard.run.launches import launch_job
from trainyard.run.launches.launch_job import LaunchOptions, find_launch
from trainyard.run.launches.launch_record import (
    LaunchList,
    LaunchLog,
    LaunchLogs,
    LaunchReport,
    RenderedLaunch,
    list_records,
)
from trainyard.store.store import default_root

Root = str | os.PathLike[str] | None
"""The folder of a store; the user's if None."""


def launch(
    job: JobSource,
    *,
    on: str,
    options: LaunchOptions | None = None,
    follow: bool = False,
    say: Callable[[str], None] = lambda _: None,
    store: Root = None,
) -> LaunchReport:
    """Starts a job on a cluster: renders the files of the launcher `on`, submits them, and stores the launch.

    `on`: name of a launcher, such as `slurm`. `follow`: wait until the job is over, passing changes of its status and
    the output of node 0 to `say`.

        report = api.launch("job.toml", on="slurm", options=api.LaunchOptions(nodes=2))
        print(report.launch.id, report.status.state)

    Raises `BadInput` for a job that does not fit the nodes, `MissingProgram` or `SchedulerFailed` with the scheduler's
    message if the submission fails.
    """
    read, text = read_job(job)
    record = launch_job.submit_job(read, text, on, options or LaunchOptions(), _root(store))
    say(f"launch {record.id}: submitted to {on} as {record.scheduler_id}, in {record.folder}")
    if follow:
        return LaunchReport(launch=record, status=launch_job.follow_job(record, say))
    return LaunchReport(launch=record, status=launch_job.load_launcher(on).status(record.scheduler_id))


def launch_render(job: JobSource, *, on: str, options: LaunchOptions | None = None) -> RenderedLaunch:
    """Renders the files that `launch` would submit, without submitting anything.

    print(api.launch_render("job.toml", on="slurm").files["job.sbatch"])
    """
    read, _ = read_job(job)
    return launch_job.render_job(read, on, options or LaunchOptions())


def launch_list(*, store: Root = None) -> LaunchList:
    """Lists the stored launches, newest first."""
    return LaunchList(launches=tuple(list_records(_root(store))))


def launch_status(id: str, *, store: Root = None) -> LaunchReport:
    """Queries the status of a launch. `id`: its id, or the beginning of it."""
    record, launcher = find_launch(_root(store), id)
    return LaunchReport(launch=record, status=launcher.status(record.scheduler_id))


def launch_logs(id: str, *, lines: int = 20, node: int | None = None, store: Root = None) -> LaunchLogs:
    """Reads the last `lines` lines of each log of a launch; `node`: only of this node's
    log, or logs if the launch is an array.

    Logs that the scheduler keeps itself are read by its own command.
    """
    record, launcher = find_launch(_root(store), id)
    status = launcher.status(record.scheduler_id)  # some launchers fetch the logs with it
    folder = Path(record.folder) / "logs"
    paths = sorted(folder.glob("*.log")) if node is None else node_logs(folder, node)
    logs = [LaunchLog(path=str(path), lines=last_lines(path, lines)) for path in paths]
    if not logs and (words := status.log_command):
        printed = run_tool(words, install=f"Install {words[0]}.", next_steps={})
        logs = [LaunchLog(path=" ".join(words), lines=tuple(printed.splitlines()[-lines:]))]
    return LaunchLogs(launch=record, logs=tuple(logs))


def launch_cancel(id: str, *, save: bool = False, store: Root = None) -> LaunchReport:
    """Ends a launch; no effect if it is over. `save`: ask the job to save its state and leave, instead."""
    record, launcher = find_launch(_root(store), id)
    launcher.cancel(record.scheduler_id, save=save)
    return LaunchReport(launch=record, status=launcher.status(record.scheduler_id))


def _root(store: Root) -> Path:
    """The folder of a store."""
    return Path(store) if store is not None else default_root()
