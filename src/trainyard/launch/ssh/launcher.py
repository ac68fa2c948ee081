"""The launcher `ssh`: starts a node's process on each host of a list, without a scheduler.

The processes do not depend on the connections: the launcher may end. The job's id is the path of the launch's folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from trainyard.errors import BadInput, HostFailed, UnknownName
from trainyard.launch.launch_spec import LEFT, TOKEN
from trainyard.launch.request_checks import check_checkpoint_folder, check_options, check_request, choose_port
from trainyard.launch.ssh.node_script import folder_word, render_node_script, render_query, render_signal
from trainyard.launch.ssh.remote_host import run_on_host
from trainyard.launch.supervisor.signed_store import draw_token
from trainyard.launch_request import LEFT_ON_REQUEST, JobStatus, LaunchRequest

HOSTS, SCRIPT, CANCELLED = "hosts.json", "node.sh", "cancelled"
_AT_ONCE = 32
"""Connections at the same time."""
Result = TypeVar("Result")


class _Hosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The hosts of a job, by node. `folder`: of the nodes on each host, as a word of the shell; `config`: configuration
    file of ssh, empty for the user's."""

    hosts: tuple[str, ...]
    folder: str
    config: str = ""


class _NodeState(NamedTuple):
    """State of a node. `word`: `running`; `over`: it exited with `code`; `lost`: it ended without an exit code, as by
    SIGKILL; or `unreachable`: its host cannot be reached, with the `error`."""

    word: str
    code: int = 0
    error: str = ""


class Ssh:
    """Jobs on a list of hosts that are reached with SSH.

    Options (`SchedulerOptions.options`): `config`, a configuration file for ssh; `head`, the address of the first host
    for the others, by default its name.
    """

    starts = "nodes"

    def render(self, request: LaunchRequest) -> Mapping[str, str]:
        """Return `node.sh`, the script for each host, and `hosts.json`. Raises `BadInput` without hosts, or for options
        that only a scheduler has."""
        check_request(request)
        check_checkpoint_folder(request)
        lacks = ("--account", "--array", "--constraint", "--partition", "--qos", "--time-limit")
        check_options(request, "SSH", ("config", "head"), lacks)
        scheduler = request.scheduler
        if len(scheduler.hosts) != request.nodes:
            raise BadInput(
                f"the job has {request.nodes} nodes, but {len(scheduler.hosts)} hosts are given.",
                "Pass each host with --host, or all of them with --hostfile.",
            )
        if len(set(scheduler.hosts)) < len(scheduler.hosts):
            raise BadInput("a host is given twice.", "Give each host once.")
        if request.container:
            raise BadInput("SSH has nothing like --image.", "Omit --image.")
        port = request.port or choose_port(request.id)
        head = scheduler.options.get("head") or scheduler.hosts[0].rpartition("@")[2]
        hosts = _Hosts(hosts=scheduler.hosts, folder=folder_word(request), config=scheduler.options.get("config", ""))
        return {
            SCRIPT: render_node_script(request, f"{head}:{port}"),
            HOSTS: msgspec.json.format(msgspec.json.encode(hosts), indent=1).decode() + "\n",
        }

    def submit(self, files: Path) -> str:
        """Start the node's process on every host; return the path of `files`. If a host fails, the processes on the
        others are ended and the error is raised."""
        job, script = _read(files), (files / SCRIPT).read_text("utf-8")
        token = draw_token()
        (files / CANCELLED).unlink(missing_ok=True)

        def start(node: int) -> HostFailed | None:
            """Start a node; return its error."""
            try:
                _run(job, node, f"{TOKEN}={shlex.quote(token)}\n{script}")
            except HostFailed as error:
                return error
            return None

        failures = [error for error in _on_all(start, len(job.hosts)) if error]
        if failures:
            self.cancel(str(files))
            if len(failures) == 1:
                raise failures[0]
            message = f"{len(failures)} of {len(job.hosts)} hosts failed. The first: {failures[0].message}"
            raise HostFailed(message, failures[0].next_step)
        return str(files)

    def status(self, id: str) -> JobStatus:
        """Return the status of a job, which is that of its head, and append the new output of each node to `logs/`.

        The reason names hosts that cannot be reached and nodes that have ended before the head.
        """
        files = Path(id)
        job = _read(files)
        logs = files / "logs"
        logs.mkdir(exist_ok=True)

        def query(node: int) -> _NodeState:
            """Query a node and append its output."""
            log = logs / f"node{node}.log"
            try:
                printed = _run(job, node, render_query(job.folder, log.stat().st_size if log.exists() else 0))
            except HostFailed as error:
                return _NodeState("unreachable", error=error.message)
            first, _, output = printed.partition(b"\n")
            if output:
                with log.open("ab") as file:
                    file.write(output)
            word, _, code = first.decode("utf-8", "replace").partition(" ")
            return _NodeState(word, int(code) if code.isdecimal() else 0)

        states = _on_all(query, len(job.hosts))
        paths = tuple(str(path) for path in sorted(logs.glob("*.log")))
        return _status(states, job.hosts, paths, (files / CANCELLED).exists())

    def cancel(self, id: str, *, save: bool = False) -> None:
        """End the processes of all nodes (SIGKILL). `save`: ask the job to save its state and leave (SIGTERM)."""
        files = Path(id)
        job = _read(files)
        if not save:
            (files / CANCELLED).touch()

        def end(node: int) -> None:
            """Send the signal to a node; a host that cannot be reached is left out."""
            try:
                _run(job, node, render_signal(job.folder, "TERM" if save else "KILL"))
            except HostFailed:
                return

        _on_all(end, len(job.hosts))


def _status(states: Sequence[_NodeState], hosts: Sequence[str], logs: tuple[str, ...], cancelled: bool) -> JobStatus:
    """The status of a job from the states of its nodes: node 0, the head, decides, and the others give notes. `logs`:
    paths of the logs; `cancelled`: whether it was ended by `cancel`. A head that exits with code `LEFT` was asked to
    leave and can be resumed."""
    head = states[0]
    notes = [f"{host}: {state.error}" for host, state in zip(hosts, states) if state.word == "unreachable"]
    notes += [
        f"Node {node} ({hosts[node]}) has ended{f' with exit code {state.code}' if state.word == 'over' else ''}."
        for node, state in enumerate(states)
        if node and state.word in ("lost", "over") and head.word in ("running", "unreachable")
    ]
    reason = " ".join(notes[:4])
    if head.word == "running":
        return JobStatus(state="running", reason=reason, nodes=tuple(hosts), logs=logs)
    if head.word == "unreachable":
        advice = "The state of the job is unknown until its first host can be reached."
        return JobStatus(state="running", reason=reason, next_step=advice, nodes=tuple(hosts), logs=logs)
    if head.word == "over" and head.code == 0:
        return JobStatus(state="ended", nodes=tuple(hosts), logs=logs)
    if cancelled:
        return JobStatus(state="cancelled", nodes=tuple(hosts), logs=logs)
    if head.word == "over" and head.code == LEFT:
        return JobStatus(state="preempted", reason=LEFT_ON_REQUEST, nodes=tuple(hosts), logs=logs)
    end = f"ended with exit code {head.code}" if head.word == "over" else "was killed"
    return JobStatus(
        state="failed",
        reason=f"Node 0 ({hosts[0]}) {end}.",
        next_step="`trainyard launch logs` prints its output.",
        nodes=tuple(hosts),
        logs=logs,
    )


def _read(files: Path) -> _Hosts:
    """Read the hosts of a job. Raises `UnknownName` if there is no job in the folder."""
    try:
        return msgspec.json.decode((files / HOSTS).read_bytes(), type=_Hosts)
    except (OSError, msgspec.DecodeError) as error:
        raise UnknownName(f"{files} is not the folder of a job that was started with ssh: {error}.") from error


def _run(job: _Hosts, node: int, script: str) -> bytes:
    """Run a script on the host of a node."""
    return run_on_host(job.hosts[node], f"node={node}\n{script}", ["-F", job.config] if job.config else [])


def _on_all(work: Callable[[int], Result], nodes: int) -> list[Result]:
    """Results of `work` for each node, by node; up to 32 run at the same time."""
    with ThreadPoolExecutor(min(nodes, _AT_ONCE)) as pool:
        return list(pool.map(work, range(nodes)))
