"""Start a job on a cluster: divide its ranks over nodes, render the launcher's files, and submit them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import groupby
from pathlib import Path

from msgspec.structs import replace

from trainyard import job_file, machine, plugins
from trainyard.errors import BadInput, TrainyardError
from trainyard.formats import toml
from trainyard.job import Job, Recovery
from trainyard.launch.fabric_environment import Fabric, fabric_environment
from trainyard.launch.launch_spec import NODE_MODULE
from trainyard.launch.node_logs import FollowedLogs
from trainyard.launch.request_checks import check_nodes
from trainyard.launch_request import Component, Container, JobStatus, LaunchRequest, SchedulerOptions, Variable
from trainyard.plugins import Launcher
from trainyard.run.launches.launch_record import LaunchRecord, RenderedLaunch, find_record, write_record
from trainyard.store.disk_space import write_whole, writing
from trainyard.store.store import new_id, now

_POLL_S = 2.0
"""Seconds between two queries of a job's status; schedulers ask for few queries."""
_CONTAINER_GATHER_S = 1800
"""Seconds in which all nodes pull and start a container, unless the user gives another time."""
_RENDERED_STORE = "<store>"


@dataclass(frozen=True)
class LaunchOptions:
    """How a job is started on a cluster.

    `nodes`: number of nodes; 0 takes as many as the ranks need on the job's machine, else those of `[recovery]`.
    `components`: kinds of nodes, in place of `nodes`. `scheduler`: options of the scheduler.
    `accelerators_per_node`: accelerators to request on each node; those of its ranks if None and the job names a
    machine with accelerators. `container`: in which each node's processes run. `environment`: variables, name ->
    value, which override those for the fabric. `port`: at which the nodes meet; the launcher's choice if None.
    `shared_folder`: folder that all nodes share, for checkpoints; by default one in the launch's folder, if the
    launcher's nodes share it. `node_folder`: folder on each node for its files. `python`: interpreter on the nodes;
    by default this one, `python3` in a container, or that of Ray's workers. `tag`: name of the run. `fabric`: the
    network between hosts; if empty, that of the job's machine, or none for pods without RDMA adapters. `gather_s`:
    seconds that node 0 waits for the others, and they for it, at the start and after a loss; 0 for the default: half an
    hour with a container, whose image each node may have to pull, else that of the nodes' command.
    """

    _: KW_ONLY
    nodes: int = 0
    components: tuple[Component, ...] = ()
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    accelerators_per_node: int | None = None
    container: Container | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    shared_folder: str = ""
    node_folder: str = ""
    python: str = ""
    tag: str = ""
    gather_s: int = 0
    fabric: Fabric = ""


def render_job(job: Job, on: str, options: LaunchOptions) -> RenderedLaunch:
    """The files that `submit_job` would submit; nothing is written or started. The store and the id of the launch,
    which does not exist yet, are placeholders."""
    launcher = load_launcher(on)
    request = build_request(job, options, "<launch id>", Path("/", _RENDERED_STORE, "launches", "<launch id>"), on)
    files = {
        name: text.replace(f"/{_RENDERED_STORE}", _RENDERED_STORE) for name, text in launcher.render(request).items()
    }
    return RenderedLaunch(
        on=on, nodes=request.nodes, ranks=job.layout.ranks, files=files, environment=dict(request.environment)
    )


def submit_job(job: Job, job_text: str, on: str, options: LaunchOptions, root: Path) -> LaunchRecord:
    """Create a launch in the store at `root`, submit its files, and return its record.

    `job_text`: the job file of `job`, to which the ranks of unequal nodes are added. If the submission fails, the
    launch's folder is removed and the error raised.
    """
    launcher = load_launcher(on)
    job_file.check_secrets(job_text, "the job")
    id = new_id()
    folder = root.absolute() / "launches" / id
    request = build_request(job, options, id, folder, on)
    job_text = job_file.complete(job_text, job)
    if request.job != job:
        job_text = _add_recovery(job_text, request.job.recovery)
    files = {"job.toml": job_text, **launcher.render(request)}
    with writing(folder):
        (folder / "logs").mkdir(parents=True)
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_whole(folder / name, text.encode())
        record = LaunchRecord(
            id=id,
            on=on,
            job=job.name,
            scheduler_id=launcher.submit(folder),
            started=now(),
            nodes=request.nodes,
            ranks=job.layout.ranks,
            folder=str(folder),
        )
        write_record(record)
    except TrainyardError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return record


def follow_job(record: LaunchRecord, say: Callable[[str], None], poll_s: float = _POLL_S) -> JobStatus:
    """Report changes of a job's status, and the output of node 0 (of each element of an array), until the job is over;
    return its last status.

    A job that is requeued is followed further.
    """
    launcher = load_launcher(record.on)
    logs, reported = FollowedLogs(Path(record.folder) / "logs", 0), ""
    while True:
        status = launcher.status(record.scheduler_id)
        text = describe(status)
        if text != reported:
            say(f"launch {record.id}: {text}")
            reported = text
        for line in logs.new_lines(status.is_over):
            say(line)
        if status.is_over:
            return status
        time.sleep(poll_s)


def describe(status: JobStatus) -> str:
    """A status as one line: state, nodes and reason."""
    nodes = f" on {', '.join(status.nodes[:4])}{', ...' if len(status.nodes) > 4 else ''}" if status.nodes else ""
    restarts = f", restart {status.restarts}" if status.restarts else ""
    return f"{status.state}{nodes}{restarts}{f': {status.reason}' if status.reason else ''}"


def load_launcher(on: str) -> Launcher:
    """The launcher `on`, for nodes. Raises `UnknownName`, or `BadInput` for a launcher that only starts local ranks."""
    launcher: Launcher = plugins.load("launchers", on)
    if launcher.starts != "nodes":
        raise BadInput(f"the launcher {on!r} starts ranks on this machine only.", "Use `trainyard run JOB.toml`.")
    return launcher


def find_launch(root: Path, name: str) -> tuple[LaunchRecord, Launcher]:
    """The record of a launch by its id or a prefix of it, and its launcher. Raises as `find_record`."""
    record = find_record(root, name)
    return record, load_launcher(record.on)


def build_request(job: Job, options: LaunchOptions, id: str, folder: Path, on: str = "slurm") -> LaunchRequest:
    """The request to the launcher `on` for the launch `id` of `job`. `folder`: `<store>/launches/<id>`. Its job has the
    ranks of unequal nodes. Raises `BadInput` if the nodes do not have the job's ranks."""
    known_machine = machine.load(job.machine) if job.machine else None
    components = options.components or _stated_kinds(job, options) or (_one_kind(job, options, known_machine),)
    check_nodes(components, job.layout.ranks)
    job = _with_node_ranks(job, components)
    nodes = sum(component.nodes for component in components)
    # A pod without RDMA adapters has an ordinary network, whatever its host has.
    has_no_rdma = on == "k8s" and "rdma" not in options.scheduler.options
    variables = fabric_environment(known_machine, nodes, options.fabric or ("none" if has_no_rdma else ""))
    given = {name: Variable(value=value, reason="Given by the user.") for name, value in options.environment.items()}
    vendor = known_machine.device.vendor if known_machine else ""
    accelerators = options.accelerators_per_node
    if accelerators is None:
        per_device = known_machine.device.ranks if known_machine else 1
        if vendor in ("nvidia", "amd"):
            components = tuple(
                replace(component, accelerators_per_node=-(-component.ranks_per_node // per_device))
                for component in components
            )
        accelerators = components[0].accelerators_per_node
    scheduler = replace(options.scheduler, accelerators_per_node=accelerators)
    container = options.container and replace(options.container, vendor=vendor)
    # Ray's workers have a Python of their own.
    python = options.python or ("" if on == "ray" else "python3" if container else sys.executable)
    tag = ("--tag", options.tag) if options.tag else ()
    gather_s = options.gather_s or (_CONTAINER_GATHER_S if container else 0)
    gather = ("--gather-s", str(gather_s)) if gather_s else ()
    return LaunchRequest(
        job=job,
        command=(python, "-m", NODE_MODULE, *gather, *tag),
        id=id,
        name=re.sub(r"[^A-Za-z0-9._-]", "-", job.name).strip("-._") or "trainyard",
        folder=str(folder),
        store=str(folder.parents[1]),
        node_folder=os.path.expanduser(options.node_folder),
        shared_folder=options.shared_folder,
        components=components,
        port=options.port,
        environment={**variables, **given},
        scheduler=scheduler,
        container=container,
    )


def _stated_kinds(job: Job, options: LaunchOptions) -> tuple[Component, ...]:
    """The nodes that the job file states in `ranks_per_node`, a component for each run of equal ones; empty if it does
    not. Raises `BadInput` if another number of nodes is requested."""
    ranks = job.recovery.ranks_per_node
    if ranks and options.nodes not in (0, len(ranks)):
        raise BadInput(
            f"--nodes {options.nodes}, but ranks_per_node = {list(ranks)} at $.recovery is for {len(ranks)} nodes.",
            "Leave out --nodes, or change the job file.",
        )
    return tuple(Component(nodes=len(list(group)), ranks_per_node=count) for count, group in groupby(ranks))


def _with_node_ranks(job: Job, components: Sequence[Component]) -> Job:
    """The job with the ranks of each node in its `[recovery]`, if the nodes have different numbers. Raises `BadInput`
    if the job file states other nodes."""
    ranks = tuple(component.ranks_per_node for component in components for _ in range(component.nodes))
    recovery, equal = job.recovery, len(set(ranks)) == 1
    if recovery.ranks_per_node and recovery.ranks_per_node != ranks:
        raise BadInput(
            f"the components have {list(ranks)} ranks per node, but ranks_per_node = {list(recovery.ranks_per_node)} "
            "at $.recovery.",
            "Leave out --component, or change the job file.",
        )
    if equal or recovery.ranks_per_node:
        return job
    if recovery.nodes not in (1, len(ranks)):
        raise BadInput(
            f"the components have {len(ranks)} nodes, but nodes = {recovery.nodes} at $.recovery.",
            f"Set nodes = {len(ranks)}, or leave it out.",
        )
    return replace(job, recovery=replace(recovery, nodes=len(ranks), ranks_per_node=ranks))


def _add_recovery(job_text: str, recovery: Recovery) -> str:
    """The job file `job_text` with the numbers of nodes and of their ranks of `recovery`."""
    document = toml.loads(job_text)
    nodes = {"nodes": recovery.nodes, "ranks_per_node": list(recovery.ranks_per_node)}
    document["recovery"] = {**document.get("recovery", {}), **nodes}
    return toml.dumps(document)


def _one_kind(job: Job, options: LaunchOptions, known_machine: machine.Machine | None) -> Component:
    """The nodes of a job on equal nodes. Raises `BadInput` if they do not divide the job's ranks."""
    ranks = job.layout.ranks
    nodes = options.nodes or (
        max(1, -(-ranks // known_machine.ranks_per_host)) if known_machine else job.recovery.nodes
    )
    if ranks % nodes:
        raise BadInput(
            f"{ranks} ranks cannot be divided over {nodes} nodes equally.",
            f"Use --nodes with a divisor of {ranks}, or change [layout].",
        )
    if known_machine and ranks // nodes > known_machine.ranks_per_host:
        raise BadInput(
            f"{nodes} nodes would have {ranks // nodes} ranks each, but a host of {known_machine.name} has "
            f"{known_machine.ranks_per_host}.",
            f"Use --nodes {-(-ranks // known_machine.ranks_per_host)} or more.",
        )
    return Component(nodes=nodes, ranks_per_node=ranks // nodes)
