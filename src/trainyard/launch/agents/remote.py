"""The agent of a node on another host than the supervisor's: connects, gets the job, runs ranks, delivers its part.

It needs the head's address and the job's token only; everything else comes from the supervisor's store. It uses a
folder of its own. If the supervisor is lost, the agent ends its ranks and reconnects: a restarted supervisor
resumes the job.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError

from trainyard.errors import EnvironmentFailed, TrainyardError
from trainyard.launch import epoch
from trainyard.launch.agents import elastic
from trainyard.launch.agents.lease import FENCE_S, Lease
from trainyard.launch.agents.preload import preload
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.agents.rank_progress import HeartbeatBoard
from trainyard.launch.launch_spec import LEFT, LOST
from trainyard.launch.supervisor import clock_exchange, messages, part_transfer
from trainyard.launch.supervisor.messages import AgentReport, JobStart
from trainyard.launch.supervisor.signed_store import BadSignature, SignedStore
from trainyard.pdeathsig import die_with_parent

_STORE_TIMEOUT = timedelta(seconds=20)
_CONNECT_TIMEOUT = timedelta(seconds=5)
_PART_TIMEOUT = timedelta(minutes=10)
_RETRY_S = 0.5
_CONNECT_S = 5.0
_INTERNAL_ERROR = 70
_UNREACHED = 66
"""Exit code of an agent that never reached the supervisor of its job (EX_NOINPUT of sysexits.h)."""
_FAILED_STARTS = 3
"""Consecutive agents that may end by an error of their own, other than the loss of the supervisor."""


@dataclass(frozen=True)
class Node:
    """A node, and how it takes part in a job.

    `index`: 1 and up; `host`, `port`: address of the head; `folder`: this node's folder for runs; `job_id`, `token`:
    those of the job; `wait_s`: seconds without a supervisor after which the node gives up. `prepare`: called with the
    start data and the address of this host in the connection to the head, before ranks start; returns variables for the
    ranks' environment and the run's folder. Raises `TrainyardError` if this host cannot take part. `pack`: called with
    the run's folder at the end; returns its archive, and its name if it was left in a shared folder, else an empty
    name. `say`: prints a line.
    """

    index: int
    host: str
    port: int
    folder: Path
    job_id: str
    token: str
    wait_s: float
    prepare: Callable[[JobStart, str], tuple[Mapping[str, str], Path]]
    pack: Callable[[Path], tuple[bytes, str]]
    say: Callable[[str], object]


def run(node: Node) -> int:
    """Run agents of the node, one after another, until the job is over; return its exit code.

    Returns `LEFT` if this process is asked to leave (SIGTERM) while no agent is connected. Raises `EnvironmentFailed`
    if there is no supervisor for `node.wait_s` seconds, or agents fail for reasons of their own.
    """
    children, notices = list[int](), list[int]()

    def leave(sign: int, _: FrameType | None) -> None:
        """Pass the request on to the agent, which passes it on to the supervisor."""
        notices.append(sign)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)
    deadline_s, failed_starts = time.monotonic() + node.wait_s, 0
    while True:
        pid = _fork(node, deadline_s)
        children[:] = [pid]
        if notices:
            os.kill(pid, signal.SIGTERM)  # it arrived before there was a child to pass it on to
        exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        children.clear()
        if exit_code not in (LOST, _UNREACHED, _INTERNAL_ERROR) and exit_code >= 0:
            return exit_code
        if notices:
            return LEFT
        if exit_code == _UNREACHED:
            raise EnvironmentFailed(
                f"node {node.index} could not reach a supervisor at {node.host}:{node.port} for {node.wait_s:g} s.",
                "Look at the output of node 0. The address must be reachable from this host, and all nodes need the "
                "same job id and token.",
            )
        failed_starts = failed_starts + 1 if exit_code == _INTERNAL_ERROR else 0
        if failed_starts == _FAILED_STARTS:
            raise EnvironmentFailed(
                f"the agent of node {node.index} failed {failed_starts} times.", "See its messages."
            )
        reason = (
            f"it got no answer from the supervisor for {FENCE_S:g} s"
            if exit_code == -signal.SIGALRM
            else "the supervisor is lost"
            if exit_code == LOST
            else f"it ended with code {exit_code}"
        )
        node.say(f"node {node.index}: ending its ranks, since {reason}; reconnecting")
        deadline_s = time.monotonic() + node.wait_s
        time.sleep(_RETRY_S)


def _fork(node: Node, deadline_s: float) -> int:
    """Fork a process that runs one agent; return its id. `deadline_s`: monotonic time until which it tries to
    connect."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    exit_code = _INTERNAL_ERROR
    try:
        signal.signal(signal.SIGTERM, _leave_early)
        die_with_parent(parent, signal.SIGKILL)
        set_process_name(f"agent{node.index}")
        exit_code = _run_agent(node, deadline_s)
    except (DistError, BadSignature) as error:
        node.say(f"node {node.index}: {str(error).partition('Exception raised from')[0].strip()}")
        exit_code = LOST
    except TrainyardError as error:
        node.say(f"node {node.index}: {error}")
        exit_code = error.exit_code
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else _INTERNAL_ERROR
    except Exception as error:  # not into the caller's code, which belongs to the parent
        node.say(f"node {node.index}: {type(error).__name__}: {error}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _leave_early(_sign: int, _frame: FrameType | None) -> NoReturn:
    """End a process that is not connected yet, or has no ranks yet."""
    raise SystemExit(LEFT)


def _run_agent(node: Node, deadline_s: float) -> int:
    """Connect, get the job, run an agent to the job's end and deliver this node's part; return the job's exit code.

    Returns `_UNREACHED` if there is no supervisor of the job until `deadline_s`. Raises `DistError` if the supervisor
    is lost later.
    """
    connection = _connect(node, deadline_s)
    if connection is None:
        return _UNREACHED
    store, start, own_address = connection
    spec = start.spec
    if spec.job_id != node.job_id or not 0 < node.index < spec.nodes:
        raise EnvironmentFailed(
            f"{node.host}:{node.port} serves job {spec.job_id!r} on {spec.nodes} nodes, but this is node {node.index} "
            f"of job {node.job_id!r}.",
            "Start all nodes with the same --job-id, --nodes and --head.",
        )
    try:
        environment, folder = node.prepare(start, own_address)
    except TrainyardError as error:
        _report_problem(store, node.index, str(error))
        raise
    os.environ.update({name: value for name, value in environment.items() if name not in os.environ})
    preload(spec.preload)
    board = HeartbeatBoard(spec.node_ranks(node.index))
    lease = Lease(board)
    link = elastic.SupervisorLink(store, node.index, lease)

    def pass_on(_sign: int, _frame: FrameType | None) -> None:
        link.notice = True

    signal.signal(signal.SIGTERM, pass_on)
    follow_clock = partial(_follow_clock, store, spec.clock)
    follow_clock()
    exit_code = elastic.run(spec, link, board, folder, start.run, follow_clock)
    lease.end()
    store.store.set_timeout(_PART_TIMEOUT)
    _deliver(node, store, folder)
    return exit_code


def _connect(node: Node, deadline_s: float) -> tuple[SignedStore, JobStart, str] | None:
    """Connect to the head, again and again until `deadline_s`, a monotonic time; at least one attempt is made.

    Returns the store, the start data, and this host's address in the connection; None if the time is over, after saying
    why the last attempt failed.
    """
    while True:
        try:
            with socket.create_connection((node.host, node.port), timeout=_CONNECT_S) as connection:
                own_address = str(connection.getsockname()[0])
            raw_store = TCPStore(node.host, node.port, None, False, _CONNECT_TIMEOUT, wait_for_workers=False)
            store = SignedStore(raw_store, node.token)
            start = msgspec.json.decode(store.get(messages.START), type=JobStart)
            raw_store.set_timeout(_STORE_TIMEOUT)
            return store, start, own_address
        except (OSError, DistError, BadSignature, msgspec.MsgspecError) as error:
            reason = str(error).partition("Exception raised from")[0].strip()
        if time.monotonic() >= deadline_s:
            node.say(f"node {node.index}: {node.host}:{node.port}: {reason}")
            return None
        time.sleep(_RETRY_S)


def _report_problem(store: SignedStore, node: int, problem: str) -> None:
    """Report to the supervisor that this host cannot take part."""
    report = AgentReport(node=node, life=f"problem {os.getpid()}", beat=1, host=socket.gethostname(), problem=problem)
    store.set(messages.key(node), msgspec.json.encode(report))


def _follow_clock(store: SignedStore, clock: epoch.EpochClock) -> None:
    """Measure the supervisor's clock and use it in this process. `clock`: as the supervisor started it.

    On the supervisor's own host `clock` is used exactly, unless the measurement contradicts it, as with a process whose
    clocks are simulated.
    """
    measured = clock_exchange.measure(store)
    is_same_host = epoch.follow(clock)
    if not is_same_host or abs(measured.offset_ns - epoch.offset_ns()) > measured.error_ns:
        epoch.follow_measured(measured.offset_ns)


def _deliver(node: Node, store: SignedStore, folder: Path) -> None:
    """Send this node's part of the run, or the reason why it has none; say how long that took."""
    began_s = time.monotonic()
    try:
        archive, shared = node.pack(folder)
    except (TrainyardError, OSError) as error:
        part_transfer.send_part(store, node.index, b"", problem=str(error))
        raise
    part_transfer.send_part(store, node.index, archive, shared)
    node.say(
        f"node {node.index}: its part of {len(archive):,} bytes was delivered in {time.monotonic() - began_s:.2f} s"
    )
