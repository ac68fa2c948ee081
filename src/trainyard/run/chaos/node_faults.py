"""Run a job on several nodes of this machine, kill processes and whole nodes at random, and score its recovery.

As on several hosts, each node is a process of its own (`launch_spec.NODE_MODULE`) with a folder of its own; the nodes
share the head's address, the token and the folder of the checkpoints only. This process acts as the scheduler: it
starts the process of a killed node again.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace as with_fields
from functools import partial
from pathlib import Path

import msgspec

from trainyard.errors import BadInput, CommandFailed
from trainyard.job import Job
from trainyard.launch.launch_spec import NODE_MODULE, TOKEN
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.failure_report import tail
from trainyard.pdeathsig import die_with_parent
from trainyard.run.chaos import chaos_files
from trainyard.run.chaos.chaos_files import InjectedFault
from trainyard.run.chaos.experiment import ChaosResult, ChaosScore
from trainyard.run.chaos.fault_plan import Fault, FaultPlan
from trainyard.run.chaos.score_recovery import score_faults, strays
from trainyard.run.local import harness
from trainyard.run.nodes.head import on_nodes
from trainyard.run.nodes.hosts import Hosts
from trainyard.run.session import Session
from trainyard.store.disk_space import write_whole
from trainyard.store.run_folder import decode_sample, write_digests

KINDS = ("kill_worker", "kill_agent", "kill_supervisor", "kill_node")
_FIRST_STEP = 2
_POLL_S = 0.05
_PATIENCE_S = 180.0
"""Seconds without progress of the experiment after which it is given up."""


def random_plan(job: Job, nodes: int, kills: int, seed: int) -> FaultPlan:
    """Draw a plan of `kills` faults of the kinds `KINDS`, each about equally often, at random steps and targets.

    Raises `BadInput` if the job has too few steps or restarts for it.
    """
    steps = range(_FIRST_STEP, job.measure.in_all - 1)
    if kills > len(steps):
        raise BadInput(f"{kills} kills, but the job has {job.measure.in_all} steps.", "Increase steps at $.measure.")
    if kills > job.recovery.max_restarts:
        raise BadInput(
            f"{kills} kills, but max_restarts = {job.recovery.max_restarts} at $.recovery.",
            f"Set max_restarts = {kills}.",
        )
    draw = random.Random(seed)  # noqa: S311 - a plan that can be repeated
    kinds = [KINDS[index % len(KINDS)] for index in range(kills)]
    draw.shuffle(kinds)
    faults: list[Fault] = []
    for kind, step in zip(kinds, sorted(draw.sample(steps, kills)), strict=True):
        rank = draw.randrange(job.layout.ranks) if kind == "kill_worker" else -1
        node = draw.randrange(nodes) if kind in ("kill_agent", "kill_node") else -1
        faults.append(Fault(kind=kind, step=step, rank=rank, node=node))
    return FaultPlan(fault=tuple(faults))


def execute(job: Job, job_text: str, nodes: int, plan: FaultPlan, session: Session) -> ChaosResult:
    """Run `job` on this machine without faults, then on `nodes` nodes under `plan`; store the score with that run.

    `job_text`: the job file of `job`. Raises `BadInput` for a plan that does not fit, `CommandFailed` if the run does
    not end, and the errors of `harness.execute`.
    """
    job, job_text = on_nodes(job, job_text, nodes)
    if not job.checkpoint.interval:
        raise BadInput("the job saves no checkpoints.", "Set [checkpoint] interval = N.")
    session.say("Run 1 of 2: no faults, on this machine.")
    reference = harness.execute(job, job_text, with_fields(session, tag=""))
    session.say(f"Run 2 of 2: {len(plan.fault)} kills on {nodes} nodes.")
    with _nodes(job, job_text, nodes, session) as driver:
        injected = {number: driver.inject(fault) for number, fault in enumerate(plan.fault)}
        driver.wait_for_end()
    folder, run = driver.run_folder, session.store.load(driver.hosts.run_id)
    if session.tag:
        session.store.tag(run.id, session.tag)
    (folder / chaos_files.FOLDER).mkdir(exist_ok=True)
    write_whole(folder / chaos_files.FOLDER / "plan.json", msgspec.json.encode(plan))
    for number, fault in injected.items():
        write_whole(folder / chaos_files.FOLDER / f"fault{number}.json", msgspec.json.encode(fault))
    score = ChaosScore(
        reference=reference.id,
        plan=plan,
        faults=score_faults(run, reference, plan, injected, event_log.read(folder)),
        unplanned=strays(run, plan, injected),
    )
    write_whole(folder / chaos_files.SCORE, msgspec.json.format(msgspec.json.encode(score), indent=1) + b"\n")
    write_digests(folder)
    return ChaosResult(run, score, None)


class Nodes:
    """The node processes of a job on this machine."""

    def __init__(self, job: Job, hosts: Hosts, folder: Path, session: Session) -> None:
        """`folder`: gets a folder for each node, the job file and the shared folder."""
        self.job, self.hosts, self.folder, self.session = job, hosts, folder, session
        self.run_folder = session.store.runs / hosts.run_id
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int) -> None:
        """Start the process of a node, in a session of its own."""
        hosts = self.hosts
        command = [sys.executable, "-P", "-m", NODE_MODULE, "--folder", str(self.folder / f"node{node}")]
        command += ["--job-id", hosts.job_id, "--nodes", str(hosts.nodes), "--node", str(node)]
        command += ["--head", f"{hosts.host}:{hosts.port}", "--job", str(self.folder / "job.toml")]
        command += ["--shared", str(hosts.shared), "--gather-s", str(hosts.gather_s)]
        environment = {**os.environ, TOKEN: hosts.token, "TRAINYARD_STORE": str(self.session.store.root)}
        with (self.folder / f"node{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),  # noqa: PLW1509 - no threads here
            )

    def inject(self, fault: Fault) -> InjectedFault:
        """Wait until the ranks have taken the fault's step and all of them train, then inject it; return when.

        Raises `CommandFailed` if that does not happen.
        """
        steps = self._wait_until_training(fault.step)
        attempt = event_log.last_attempt(event_log.read(self.run_folder))
        at = time.time_ns()
        if fault.kind == "kill_worker":
            self._kill_recorded(self._logs(self.job.node_of(fault.rank)) / f"rank{fault.rank}.pid")
        elif fault.kind == "kill_agent":
            self._kill_recorded(self._logs(fault.node) / f"agent{fault.node}.pid")
        elif fault.kind == "kill_supervisor":
            self._kill_recorded(self._logs(0) / "supervisor.pid")
        else:
            self._kill_node(fault.node)
            self.start(fault.node)
        self.session.say(f"after step {steps}: {fault.kind} ({fault.who})")
        return InjectedFault(at=at, step=steps, attempt=attempt)

    def wait_for_end(self) -> None:
        """Wait until all node processes have exited. Raises `CommandFailed` if one fails, or does not exit within
        `_PATIENCE_S` seconds."""
        for node in sorted(self._processes, reverse=True):
            try:
                code = self._processes[node].wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise self._failure(f"node {node} did not exit within {_PATIENCE_S:g} s") from None
            if code:
                raise self._failure(f"node {node} exited with code {code}")

    def end(self) -> None:
        """Kill every process of the nodes."""
        for node in self._processes:
            self._kill_node(node)

    def _logs(self, node: int) -> Path:
        """The folder of a node's logs and process ids."""
        return (self.folder / f"node{node}" / self.hosts.run_id if node else self.run_folder) / "logs"

    def _kill_recorded(self, path: Path) -> None:
        os.kill(int(path.read_text()), signal.SIGKILL)

    def _kill_node(self, node: int) -> None:
        """Kill all processes of a node at once; the supervisor on node 0 leads a session of its own."""
        groups = [self._processes[node].pid]
        if node == 0:
            with suppress(OSError, ValueError):
                groups.append(int((self._logs(0) / "supervisor.pid").read_text()))
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._processes[node].wait()

    def _wait_until_training(self, step: int) -> int:
        """Wait until every rank has completed a step of the newest attempt, and rank 0 has completed `step` steps;
        return the number of steps that rank 0 has completed. Raises `CommandFailed` if a node exits, or if this does
        not happen within `_PATIENCE_S` seconds."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            for node, process in self._processes.items():
                if process.poll() is not None:
                    raise self._failure(
                        f"node {node} exited with code {process.returncode} before all faults were injected"
                    )
            steps = self._newest_steps()
            if len(steps) == self.job.layout.ranks and min(steps.values()) > 0 and steps[0] >= step:
                return steps[0]
            time.sleep(_POLL_S)
        raise self._failure(f"the ranks did not reach step {step} within {_PATIENCE_S:g} s")

    def _newest_steps(self) -> Mapping[int, int]:
        """Rank -> number of steps taken, for ranks that have taken a step in the newest attempt."""
        newest_attempt = event_log.last_attempt(event_log.read(self.run_folder))
        if newest_attempt < 0:
            return {}
        taken: dict[int, int] = {}
        for rank in range(self.job.layout.ranks):
            path = self._logs(self.job.node_of(rank)).parent / "samples" / f"rank{rank}.jsonl"
            attempt, steps = _last_sample(path)
            if attempt == newest_attempt:
                taken[rank] = steps
        return taken

    def _failure(self, problem: str) -> CommandFailed:
        """The error of an experiment that went wrong, with the end of each node's output."""
        logs = " ".join(f"Node {node}: {tail(self.folder / f'node{node}.log')}" for node in self._processes)
        return CommandFailed(f"{problem}. {logs}", f"The nodes' output is in {self.folder}.")


def _last_sample(path: Path) -> tuple[int, int]:
    """(attempt, number of steps taken) by the last complete line of a file of samples; -1 and 0 without one."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return -1, 0
    complete = [line for line in lines[-2:] if line.endswith(b"\n")]
    if not complete:
        return -1, 0
    sample = decode_sample(complete[-1])
    return sample.attempt, sample.step + 1


@contextmanager
def _nodes(job: Job, job_text: str, nodes: int, session: Session) -> Iterator[Nodes]:
    """Start the nodes of a job on this machine; at the end none of their processes is left."""
    job_id = f"chaos-{secrets.token_hex(4)}"
    folder = session.store.root / "chaos" / job_id
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(job_text, "utf-8")
    hosts = Hosts(
        job_id=job_id,
        nodes=nodes,
        host="127.0.0.1",
        port=_free_port(),
        token=secrets.token_hex(16),
        shared=folder / "shared",
    )
    driver = Nodes(job, hosts, folder, session)
    try:
        for node in range(nodes):
            driver.start(node)
        yield driver
    finally:
        driver.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
