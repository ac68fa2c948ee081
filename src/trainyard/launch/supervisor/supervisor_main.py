"""`python -m trainyard.launch.supervisor.supervisor_main SPEC.json PARENT`: the supervisor, which starts a job's agents
and keeps the job running.

A separate process, so that the user's process never imports torch and can kill the whole job. It owns the store in
which the agents meet, and one store per generation of ranks, so that no agent's death closes a store. Agents on other
hosts connect at the address in SPEC, get what they need to start, and deliver their part of the run at the end.
SIGTERM asks the job to save and leave; SIGINT ends it at once.
Exit codes: 0: all ranks succeeded; 4: the job failed and could not be restarted, with the reason in failure.json next
to SPEC; 75: the job left on request.
"""

from __future__ import annotations

import os
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
from trainyard.launch.launch_spec import FAILED, LEFT, Spec
from trainyard.launch.supervisor import event_log, messages
from trainyard.launch.supervisor.agent_reports import Now
from trainyard.launch.supervisor.clock_exchange import fork_clock_process
from trainyard.launch.supervisor.event_log import SUPERVISOR, EventLogWriter, JobEvent
from trainyard.launch.supervisor.failure_detection import Supervision
from trainyard.launch.supervisor.failure_report import Failure, tail, write
from trainyard.launch.supervisor.hang_records import StoredRecords
from trainyard.launch.supervisor.listen import listen, raise_open_files_limit
from trainyard.launch.supervisor.part_transfer import PartReceiver
from trainyard.launch.supervisor.signed_store import SignedStore, take_token
from trainyard.pdeathsig import die_with_parent

_STORE_TIMEOUT = timedelta(seconds=20)
_POLL_S = 0.01
_SHUTDOWN_S = 3.0
"""Seconds that agents have to end after the job."""
_FAILED_STARTS = 3
"""Consecutive agents of a node that may end without a report before the job is aborted."""


class SupervisorStore:
    """The supervisor's own store, and one store for the ranks of each generation. Each runs in a thread."""

    def __init__(self, host: str, listening: socket.socket, token: str, nodes: int) -> None:
        """Serve at `host` on a socket that listens already; `token`: that of the job; `nodes`: number of nodes."""
        self._host = host
        self.agents_store = SignedStore(self._open_store(listening), token)
        self._ranks_store: Any = None
        """The store of the current generation's ranks."""
        self._report_keys = [messages.key(node) for node in range(nodes)]
        self.agents_store.reserve(self._report_keys)

    def _open_store(self, listening: socket.socket) -> Any:
        """Open a torch TCPStore server on a socket that listens already."""
        from torch._C._distributed_c10d import TCPStore

        port = listening.getsockname()[1]
        return TCPStore(
            self._host,
            port,
            None,
            True,
            _STORE_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )

    def for_ranks(self) -> int:
        """Open a store for the ranks of a new generation, close the previous one, and return the port."""
        self._ranks_store = self._open_store(listen(self._host, 0))
        return self._ranks_store.port

    def offer(self, start: messages.JobStart) -> None:
        """Publish the data with which agents on other hosts start."""
        self.agents_store.set(messages.START, msgspec.json.encode(start))

    def publish(self, plan: messages.AgentPlan) -> None:
        self.agents_store.set(messages.PLAN, msgspec.json.encode(plan))
        self.agents_store.set(messages.SERIAL, b"%d" % plan.serial)

    def reports(self) -> dict[int, messages.AgentReport]:
        """The last report of each node that has sent one, by node. One exchange with the store, for all nodes."""
        return {
            node: msgspec.json.decode(value, type=messages.AgentReport)
            for node, value in enumerate(self.agents_store.get_all(self._report_keys))
            if value is not None
        }


def now() -> Now:
    return Now(time.monotonic(), epoch.now_ns())


def attempts(folder: Path) -> int:
    """Number of earlier attempts of a resumed run."""
    return event_log.last_attempt(event_log.read(folder)) + 1


class _LeaveEarly(BaseException):
    """Raised on a request to leave before any process was started."""


def main(path: Path, parent: int) -> int:
    """Supervise the job whose SPEC is at `path`, until it is over; return the exit code.

    `parent`: PID of the launcher; the supervisor is killed when it dies. The clock of the job starts no earlier than
    the last event of an earlier attempt.
    """
    die_with_parent(parent, signal.SIGKILL)
    set_process_name("supervisor")
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    os.environ.update({**spec.environment, **os.environ})  # before torch, which reads some of them, is loaded
    events = event_log.read(path.parent)
    spec = replace(spec, clock=epoch.start(max((event.noticed or event.at for event in events), default=0)))
    began = now()
    try:
        return _supervise(path, spec, began)
    except _LeaveEarly:
        return _record_early_leave(path.parent, spec, began)
    except KeyboardInterrupt:  # the job is cancelled, which is not a fault
        attempt = max(0, event_log.last_attempt(event_log.read(path.parent)))
        EventLogWriter(path.parent, SUPERVISOR).add(JobEvent(type="ended", at=now().epoch, attempt=attempt))
        raise


def _supervise(path: Path, spec: Spec, began: Now) -> int:
    """Start the fork server and the stores, and run the job to its end; return the exit code.

    `path`: the SPEC, which is written again with the actual port; `began`: when the supervisor started. Raises
    `_LeaveEarly` if SIGTERM arrives before any process was started; later ones ask the job to leave.
    """
    folder, signals, token = path.parent, list[int](), take_token()

    def leave(sign: int, _: object) -> NoReturn:
        signals.append(sign)  # in case a module being imported swallows the exception
        raise _LeaveEarly

    signal.signal(signal.SIGTERM, leave)  # the signal may arrive during the imports, which take seconds
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "supervisor.pid").write_text(str(os.getpid()))
    try:
        listening = listen(spec.host, spec.port)
    except OSError as error:
        message = f"the ranks cannot meet at {spec.host}:{spec.port}: {(error.strerror or str(error)).lower()}"
        write(folder, Failure(rank=-1, pid=os.getpid(), exit_code=FAILED, when=time.time(), last_words=message))
        return FAILED
    spec = replace(spec, port=listening.getsockname()[1])
    with replacing_own(path) as part:
        part.write_bytes(msgspec.json.encode(spec))
    load(spec)
    signal.signal(signal.SIGTERM, lambda sign, _: signals.append(sign))

    def run(node: int, parent: int) -> int:
        listening.close()
        return agent(path, token, node, parent)

    raise_open_files_limit()
    fork_server = ForkServer(path, run, token)
    clock_process = fork_clock_process(spec.host, spec.port, token, listening) if spec.job_id else 0
    try:
        store = SupervisorStore(spec.host, listening, token, spec.nodes)
        if spec.job_id:
            store.offer(_job_start(spec, folder))
        records = StoredRecords(store.agents_store).read
        job = Supervision(spec, began, port=store.for_ranks, attempts=attempts(folder), records=records)
        return SupervisorLoop(job, store, fork_server, folder).follow(signals)
    finally:
        fork_server.end()
        if clock_process:
            os.kill(clock_process, signal.SIGKILL)
            os.waitpid(clock_process, 0)


def _job_start(spec: Spec, folder: Path) -> messages.JobStart:
    """The data with which agents on other hosts start. `folder`: the run's, with the files that `spec` names."""
    files = {name: (folder / name).read_text("utf-8") for name in spec.files if (folder / name).exists()}
    return messages.JobStart(spec=spec, run=folder.name, files=files)


def _record_early_leave(folder: Path, spec: Spec, began: Now) -> int:
    """Record in the event log and failure.json that the job was asked to leave before any process was started; return
    the exit code."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job = Supervision(spec, began, port=lambda: 0, attempts=attempts(folder))  # it launches nothing
    job.notice(now())
    job.advance(now())
    _write_events(EventLogWriter(folder, SUPERVISOR), job.events)
    if job.failure:
        write(folder, job.failure)
    return LEFT


def _write_events(log: EventLogWriter, events: list[JobEvent]) -> None:
    while events:
        log.add(events.pop(0))


class SupervisorLoop:
    """Exchanges plans, reports and signals between a `Supervision` and the processes of its job."""

    def __init__(self, job: Supervision, store: SupervisorStore, fork_server: ForkServer, folder: Path) -> None:
        """`folder`: the run's folder, for the event log and failure.json."""
        self.job, self.store, self.fork_server, self.folder = job, store, fork_server, folder
        self.log = EventLogWriter(folder, SUPERVISOR)
        spec = job.spec
        self.own_nodes = range(spec.nodes if spec.started < 0 else spec.started)
        """Nodes whose agents this supervisor starts."""
        self._lives: dict[int, str] = {}
        """Node -> `life` in the last report when an agent of the node last ended."""
        self._failed_starts = dict.fromkeys(self.own_nodes, 0)
        """Node -> number of consecutive agents that ended without a report."""
        self._noticed: set[str] = set()
        """`life` of each agent whose notice was passed on."""
        self._sent_serial = -1
        """Serial of the last published plan."""

    def follow(self, signals: list[int]) -> int:
        """Run the job to its end; return the exit code.

        Each turn publishes the plan, takes the agents' reports, replaces agents that have ended, and advances the job
        by one step of its state machine. `signals`: numbers of received SIGTERM signals, which this clears.
        """
        for node in self.own_nodes:
            self.fork_server.start(node)
        job = self.job
        while job.result is None:
            self._publish()
            reports = self.store.reports()
            job.reports.receive(now(), reports)
            self._replace_agents(reports)
            self._heed_hosts(reports)
            if signals:
                signals.clear()
                job.notice(now())
            job.advance(now())
            for node in job.lost & set(self.own_nodes):
                self.fork_server.kill(node)
            job.lost.clear()
            _write_events(self.log, job.events)
            if job.plan.serial == self._sent_serial:
                time.sleep(job.spec.report_s)
        self._publish()
        if job.failure:
            write(self.folder, job.failure)
        if job.spec.job_id:
            PartReceiver(self.store.agents_store, self.folder).receive(self._other_nodes())
        self._shut_down()
        return job.result

    def _other_nodes(self) -> set[int]:
        """Nodes on other hosts whose agents still report, so that they deliver their part of the run."""
        return set(self.job.reports.live_nodes(now())) - set(self.own_nodes)

    def _heed_hosts(self, reports: Mapping[int, messages.AgentReport]) -> None:
        """Ask the job to leave if a host was asked to, and abort it if a host cannot take part. `reports`: by node."""
        lives = self.job.reports.live_nodes(now())
        for node, report in reports.items():
            if lives.get(node) != report.life:
                continue
            if report.problem:
                self.job.abort(now(), f"node {node} ({report.host}) cannot take part: {report.problem}")
            if report.notice and report.life not in self._noticed:
                self._noticed.add(report.life)
                self.job.notice(now())

    def _publish(self) -> None:
        if self.job.plan.serial > self._sent_serial:
            self.store.publish(self.job.plan)
            self._sent_serial = self.job.plan.serial

    def _replace_agents(self, reports: Mapping[int, messages.AgentReport]) -> None:
        """Replace agents that have ended; abort the job if `_FAILED_STARTS` agents of a node in turn end without a
        report.

        `reports`: the last report of each node. An agent reported if its `life`, a random id, is not that of an earlier
        one.
        """
        for node in self.fork_server.ended():
            self.job.reports.mark_dead(node)
            life = reports[node].life if node in reports else ""
            reported = life != self._lives.get(node, "")
            self._lives[node] = life
            self._failed_starts[node] = 0 if reported else self._failed_starts[node] + 1
            if self._failed_starts[node] < _FAILED_STARTS:
                self.fork_server.start(node)
            else:
                output = tail(self.folder / "logs" / f"agent{node}.log")
                self.job.abort(now(), f"the agent of node {node} does not start: {output}")

    def _shut_down(self) -> None:
        """Wait up to `_SHUTDOWN_S` for the agents to end, as planned; the caller kills the others with the fork
        server."""
        deadline_s, running_agents = time.monotonic() + _SHUTDOWN_S, len(self.own_nodes)
        while running_agents > 0 and time.monotonic() < deadline_s:
            running_agents -= len(self.fork_server.ended())
            time.sleep(_POLL_S)


if __name__ == "__main__":
    try:
        raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2])))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
