"""`python -m trainyard.launch.supervisor.supervisor_main SPEC.json PARENT`: starts a job's agents, and keeps
the job running.

A process of its own, so that the one a user talks to never imports torch and can kill all of it. It owns the store
that the agents meet in, and makes one for the ranks of each generation: no agent's death closes one.
SIGTERM asks the job to save and leave; SIGINT ends it at once.
Exit codes: 0 all ranks ended well; 4 something died and could not be started again, and failure.json beside the SPEC
says what; 75 the job was asked to leave and did.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from trainyard.formats.atomic import replacing_own
from trainyard.launch import epoch
from trainyard.launch.agents.fork_server import ForkServer, agent, load
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.launch_spec import LEFT, Spec
from trainyard.launch.supervisor import event_log, messages
from trainyard.launch.supervisor.event_log import SUPERVISOR, EventLogWriter, JobEvent
from trainyard.launch.supervisor.failure_detection import Now, Supervision
from trainyard.launch.supervisor.failure_report import Failure, tail, write
from trainyard.pdeathsig import die_with_parent

_TURN_S = 0.05
_SHUTDOWN_S = 3.0
_FAILED_STARTS = 3
"""So many agents of a node may end without a word, one after the other, before the job is given up."""


class SupervisorStore:
    """The supervisor's own store, and one more for each generation's ranks. Each runs in a thread."""

    def __init__(self, host: str, listening: socket.socket) -> None:
        self._host = host
        self._own: Any = self._new_at(listening)
        self._ranks: Any = None

    def _new_at(self, listening: socket.socket) -> Any:
        from torch._C._distributed_c10d import TCPStore

        port = listening.getsockname()[1]
        return TCPStore(
            self._host,
            port,
            None,
            True,
            timedelta(seconds=20),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )

    def for_ranks(self) -> int:
        """The port of a new one; that of the generation before is closed."""
        self._ranks = self._new_at(listen(self._host, 0))
        return self._ranks.port

    def publish(self, plan: messages.AgentPlan) -> None:
        self._own.set(messages.PLAN, msgspec.json.encode(plan).decode())

    def reports(self, nodes: int) -> dict[int, messages.AgentReport]:
        keys = {node: messages.key(node) for node in range(nodes)}
        there = [node for node in keys if self._own.check([keys[node]])]
        return {node: msgspec.json.decode(self._own.get(keys[node]), type=messages.AgentReport) for node in there}


def listen(host: str, port: int) -> socket.socket:
    """Raises `OSError` where another program listens."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(512)
    except OSError:
        listening.close()
        raise
    return listening


def now() -> Now:
    return Now(time.monotonic(), epoch.now_ns())


def stacks(logs: Path) -> dict[int, str]:
    """Rank -> what faulthandler wrote of it."""
    by_rank: dict[int, str] = {}
    for path in logs.glob("rank*.stacks"):
        if match := re.fullmatch(r"rank(\d+)\.stacks", path.name):
            by_rank[int(match[1])] = path.read_text("utf-8", "replace")
    return by_rank


def attempts(folder: Path) -> int:
    """How many there were before, of a run that is gone on with."""
    return max((event.attempt + 1 for event in event_log.read(folder) if event.what == "launched"), default=0)


class _LeaveEarly(BaseException):
    """To leave, before anything was started that would have to be left in order."""


def main(path: Path, parent: int) -> int:
    die_with_parent(parent, signal.SIGKILL)
    set_process_name("supervisor")
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    events = event_log.read(path.parent)
    spec = replace(spec, clock=epoch.start(max((event.noticed or event.at for event in events), default=0)))
    began = now()
    try:
        return _supervise(path, spec, began)
    except _LeaveEarly:
        return _left_early(path.parent, spec, began)


def _supervise(path: Path, spec: Spec, began: Now) -> int:
    folder, asked = path.parent, list[int]()

    def leave(sign: int, _: object) -> NoReturn:
        asked.append(sign)  # should what is being imported swallow the exception
        raise _LeaveEarly

    signal.signal(signal.SIGTERM, leave)  # importing takes seconds, and the notice may come in them
    (folder / "logs").mkdir(exist_ok=True)
    try:
        listening = listen(spec.host, spec.port)
    except OSError as error:
        words = f"the ranks cannot meet at {spec.host}:{spec.port}: {(error.strerror or str(error)).lower()}"
        write(folder, Failure(rank=-1, pid=os.getpid(), exit_code=4, when=time.time(), last_words=words))
        return 4
    spec = replace(spec, port=listening.getsockname()[1])
    with replacing_own(path) as part:
        part.write_bytes(msgspec.json.encode(spec))
    load(spec)
    signal.signal(signal.SIGTERM, lambda sign, _: asked.append(sign))

    def run(node: int, parent: int) -> int:
        listening.close()
        return agent(path, node, parent)

    fork_server = ForkServer(path, run)
    try:
        store = SupervisorStore(spec.host, listening)
        job = Supervision(spec, began, store.for_ranks, lambda: stacks(folder / "logs"), attempts(folder))
        return SupervisorLoop(job, store, fork_server, folder).follow(asked)
    finally:
        fork_server.end()


def _left_early(folder: Path, spec: Spec, began: Now) -> int:
    """Asked to leave before any process was started; the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job = Supervision(spec, began, lambda: 0, dict, attempts(folder))
    job.notice(now())
    job.look(now())
    _write_events(EventLogWriter(folder, SUPERVISOR), job.events)
    if job.failure:
        write(folder, job.failure)
    return LEFT


def _write_events(log: EventLogWriter, events: list[JobEvent]) -> None:
    while events:
        log.add(events.pop(0))


class SupervisorLoop:
    """Passes on between what was concluded and the processes that it is about."""

    def __init__(self, job: Supervision, store: SupervisorStore, fork_server: ForkServer, folder: Path) -> None:
        self.job, self.store, self.fork_server, self.folder = job, store, fork_server, folder
        self.log = EventLogWriter(folder, SUPERVISOR)
        spec = job.spec
        self.own = range(spec.nodes if spec.started < 0 else spec.started)
        self._lives: dict[int, str] = {}
        self._failed_starts = dict.fromkeys(self.own, 0)
        self._sent_serial = -1

    def follow(self, asked: list[int]) -> int:
        """Until the job is over. `asked`: signals that came."""
        for node in self.own:
            self.fork_server.start(node)
        job = self.job
        while job.result is None:
            self._publish()
            reports = self.store.reports(job.spec.nodes)
            job.hear(now(), reports)
            self._replace_agents(reports)
            if asked:
                asked.clear()
                job.notice(now())
            job.look(now())
            for node in job.lost & set(self.own):
                self.fork_server.kill(node)
            job.lost.clear()
            _write_events(self.log, job.events)
            if job.plan.serial == self._sent_serial:
                time.sleep(_TURN_S)
        self._publish()
        if job.failure:
            write(self.folder, job.failure)
        self._shut_down()
        return job.result

    def _publish(self) -> None:
        if self.job.plan.serial > self._sent_serial:
            self.store.publish(self.job.plan)
            self._sent_serial = self.job.plan.serial

    def _replace_agents(self, reports: Mapping[int, messages.AgentReport]) -> None:
        """An agent that has ended is followed by another one, as long as they come to speak."""
        for node in self.fork_server.ended():
            self.job.gone(node)
            life = reports[node].life if node in reports else ""
            reported = life != self._lives.get(node, "")
            self._lives[node] = life
            self._failed_starts[node] = 0 if reported else self._failed_starts[node] + 1
            if self._failed_starts[node] < _FAILED_STARTS:
                self.fork_server.start(node)
            else:
                words = tail(self.folder / "logs" / f"agent{node}.log")
                self.job.abort(now(), f"the agent of node {node} does not start: {words}")

    def _shut_down(self) -> None:
        """The agents hear that the job is over; who does not is killed with the fork server."""
        until, left = time.monotonic() + _SHUTDOWN_S, len(self.own)
        while left > 0 and time.monotonic() < until:
            left -= len(self.fork_server.ended())
            time.sleep(_TURN_S / 5)


if __name__ == "__main__":
    try:
        raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2])))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
