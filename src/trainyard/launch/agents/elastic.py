"""`python -m trainyard.launch.agents.elastic SPEC.json NODE [PARENT]`: the agent of one node, on torch's elastic agent.

It starts, kills and watches its node's ranks according to the supervisor's plan, and reports their state; it makes no
decisions. It can be started on any host that reaches the store named in SPEC, at any time and repeatedly. Ranks are
forked from it with torch loaded, which takes milliseconds. It has no store of its own, and its ranks meet in a store of
the supervisor: no host is special. Without the supervisor it ends, and its ranks with it (`lease.py`). On another host
than the supervisor's it is started by `remote.py`.

A generation is one launch of all ranks of the job, on all member nodes; after a fault the next one is launched. A local
rank is a rank's number on its node.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import msgspec
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.rendezvous import (
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from trainyard.launch import epoch
from trainyard.launch.agents import flight_recorder, rank_process
from trainyard.launch.agents.lease import Lease
from trainyard.launch.agents.preload import preload
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.agents.rank_progress import HeartbeatBoard
from trainyard.launch.agents.shared_devices import device_host, device_share
from trainyard.launch.launch_spec import LOST, RUN_FOLDER, Spec
from trainyard.launch.supervisor import hang_records, messages, resource_exhaustion
from trainyard.launch.supervisor.failure_report import tail
from trainyard.launch.supervisor.messages import AgentPlan, AgentReport, Member, RankReport
from trainyard.launch.supervisor.signed_store import BadSignature, SignedStore, take_token
from trainyard.pdeathsig import die_with_parent

_STORE_TIMEOUT = timedelta(seconds=20)
"""Time without an answer of the store, after which the supervisor counts as lost; a lease ends earlier."""
_STACK_BYTES = 4096
"""Size of a stack in a report, from its innermost call."""


class SupervisorLink:
    """The agent's connection to the supervisor: sends reports and receives the plan.

    `notice`: set it when this host is asked to leave; the next report passes that on.
    """

    def __init__(self, store: SignedStore, node: int, lease: Lease) -> None:
        """`lease`: renewed with every answer of the supervisor."""
        self.store = store
        self.member = Member(node=node, life=secrets.token_hex(8), device_host=device_host())
        self.notice = False
        self._lease = lease
        self._plan = AgentPlan(serial=-1)
        """The last plan received."""
        self._beat = 0
        """Number of reports sent so far."""

    def report(self, generation: int = -1, serial: int = -1, ranks: tuple[RankReport, ...] = ()) -> AgentPlan:
        """Report the state of this node through the store; return the supervisor's current plan.

        `generation`: the generation of `ranks`; `serial`: that of the last plan that this agent acted on; both -1 if
        there is none yet. Raises `DistError` if the store does not answer, `BadSignature` for a stranger's plan.
        """
        self._beat += 1
        asked_s = time.monotonic()
        report = AgentReport(
            node=self.member.node,
            life=self.member.life,
            beat=self._beat,
            pid=os.getpid(),
            generation=generation,
            serial=serial,
            ranks=ranks,
            host=socket.gethostname(),
            notice=self.notice,
            device_host=self.member.device_host,
        )
        self.store.set(messages.key(self.member.node), msgspec.json.encode(report))
        if int(self.store.get(messages.SERIAL)) != self._plan.serial:
            self._plan = msgspec.json.decode(self.store.get(messages.PLAN), type=AgentPlan)
        self._lease.renew(asked_s)
        return self._plan


class PlanRendezvous(RendezvousHandler):
    """A rendezvous that waits for the supervisor's plan, which names the members. `plan`: the last one it followed."""

    def __init__(
        self, link: SupervisorLink, spec: Spec, run_id: str, before_launch: Callable[[], object] = lambda: None
    ) -> None:
        """`before_launch`: called before this agent starts ranks of a new generation."""
        self.link, self.spec, self.run_id = link, spec, run_id
        self._before_launch = before_launch
        self.exit_code = 0
        """The job's exit code once it is over."""
        self.plan = AgentPlan()
        self._shut = False
        """Whether the ranks must stop."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a plan to run a new generation with this agent as a member, and follow it.

        Returns the store of the agents, this agent's rank among the members and their number, and the address of the
        ranks' store. Reports while it waits. Raises `RendezvousGracefulExitError` if the job is over.
        """
        while True:
            plan = self.link.report()
            if plan.do == "end":
                self.exit_code = plan.exit_code
                raise RendezvousGracefulExitError("the job is over")
            if plan.do == "run" and plan.generation > self.plan.generation and self.link.member in plan.members:
                self.plan = plan
                self._before_launch()
                rank_store = RendezvousStoreInfo(self.spec.host, plan.port)
                agent_rank = plan.members.index(self.link.member)
                return RendezvousInfo(self.link.store.store, agent_rank, len(plan.members), rank_store)
            time.sleep(self.spec.report_s)

    def get_backend(self) -> str:
        return "trainyard"

    def get_run_id(self) -> str:
        return self.run_id

    def is_closed(self) -> bool:
        return self._shut

    def set_closed(self) -> None:
        self._shut = True

    def open(self) -> None:
        """Allow the next rendezvous, after the ranks have stopped."""
        self._shut = False

    def num_nodes_waiting(self) -> int:
        """Polled while ranks run; nonzero means that they must stop."""
        return int(self._shut)

    def shutdown(self) -> bool:
        return True

    @property
    def use_agent_store(self) -> bool:
        """The supervisor hosts the ranks' store, so that no rank opens one."""
        return True


class Agent(SimpleElasticAgent):
    """The elastic agent of a node: forks, watches and ends ranks, which torch leaves to subclasses."""

    def __init__(self, rendezvous: PlanRendezvous, spec: Spec, folder: Path, heartbeats: HeartbeatBoard) -> None:
        """`folder`: the run's folder on this host; its `logs/` gets the ranks' output, failure and stack files."""
        super().__init__(
            WorkerSpec(
                role="trainyard",
                local_world_size=spec.node_ranks(rendezvous.link.member.node),
                rdzv_handler=rendezvous,
                entrypoint=spec.module,
                monitor_interval=spec.report_s,
            )
        )
        self.rendezvous, self.spec, self.logs = rendezvous, spec, folder / "logs"
        self.arguments = tuple(str(folder) if argument == RUN_FOLDER else argument for argument in spec.args)
        self.heartbeats = heartbeats
        self.processes: dict[int, ForkProcess] = {}
        """The generation's rank processes by local rank."""
        self.ends_ns: dict[int, int] = {}
        """Local rank -> when its end was seen, in ns since the epoch."""
        self.kills = resource_exhaustion.Kills()
        self.shortages: dict[int, str] = {}
        """Local rank -> the resource that the kernel killed it for; empty if unknown."""
        self.acted_serial = -1
        """Serial of the last plan that this agent acted on while its ranks run."""
        self._reports_stacks = False
        """Whether the ranks of this generation were asked for their stacks."""
        self._recorded_ns: dict[int, int] = {}
        """Local rank -> time of its flight record that was published last, in ns since the epoch."""

    def _assign_worker_ranks(
        self, store: object, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Number the ranks of this agent after those of the members before it. All agents know the numbers of ranks, so
        that they need not communicate as in torch's own method. `group_rank`: index of this agent in the members."""
        counts = [self.spec.node_ranks(member.node) for member in self.rendezvous.plan.members]
        first, world = sum(counts[:group_rank]), sum(counts)
        return [
            Worker(
                local_rank=local_rank,
                global_rank=first + local_rank,
                role_rank=first + local_rank,
                world_size=world,
                role_world_size=world,
            )
            for local_rank in range(spec.local_world_size)
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Fork the ranks of a new generation, with torchrun's variables; return local rank -> process id.

        Called by torch's agent after a rendezvous. Forgets the processes of the last generation. LOCAL_RANK counts the
        ranks of all agents that see the same devices, so that each rank has a device of its own.
        """
        fork = multiprocessing.get_context("fork")
        plan = self.rendezvous.plan
        generation = plan.generation
        share = device_share(plan.members, self.rendezvous.link.member, self.spec.node_ranks)
        self.processes, self.ends_ns, self.shortages, self._reports_stacks = {}, {}, {}, False
        self._recorded_ns = {}
        for worker in worker_group.workers:
            variables = {
                "RANK": worker.global_rank,
                "LOCAL_RANK": share.first + worker.local_rank,
                "ROLE_RANK": worker.role_rank,
                "ROLE_NAME": self.spec.module,
                "GROUP_RANK": worker_group.group_rank,
                "WORLD_SIZE": worker.world_size,
                "LOCAL_WORLD_SIZE": share.ranks,
                "GROUP_WORLD_SIZE": worker_group.group_world_size,
                "ROLE_WORLD_SIZE": worker.role_world_size,
                "MASTER_ADDR": worker_group.master_addr,
                "MASTER_PORT": worker_group.master_port,
                "TORCHELASTIC_RESTART_COUNT": generation,
                "TORCHELASTIC_MAX_RESTARTS": self.spec.max_restarts,
                "TORCHELASTIC_RUN_ID": self.rendezvous.run_id,
                "TORCHELASTIC_USE_AGENT_STORE": True,
            }
            environment = {name: str(value) for name, value in variables.items()}
            heartbeat = self.heartbeats.heartbeat(worker.local_rank)
            process = fork.Process(
                target=rank_process.main,
                args=(self.logs, os.getpid(), environment, heartbeat, self.spec.module, self.arguments),
            )
            process.start()
            self.processes[worker.local_rank] = process
        return {local_rank: process.pid for local_rank, process in self.processes.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Report the ranks' state and act on a new plan; called by torch's agent every `Spec.report_s` seconds.

        Always returns healthy: the supervisor judges. If the ranks must stop, the rendezvous is closed, whereupon
        torch's agent stops them.
        """
        plan = self.rendezvous.link.report(self.rendezvous.plan.generation, self.acted_serial, self._report_ranks())
        if plan.serial > self.acted_serial:
            self.acted_serial = plan.serial
            if plan.generation == self.rendezvous.plan.generation:
                self._act(plan)
        if plan.do in ("stop", "end") or plan.generation != self.rendezvous.plan.generation:
            self.rendezvous.set_closed()
        return RunResult(WorkerState.HEALTHY)

    def _act(self, plan: AgentPlan) -> None:
        """Pass a new plan on to the ranks: SIGUSR1 and SIGUSR2 for "stacks", a request to hold or to leave for "leave".

        A rank that has not updated its heartbeat yet cannot save its state, and is killed if it is to leave.
        """
        if plan.do == "stacks":
            self._reports_stacks = True
            self._send_signal(signal.SIGUSR1)
            self._send_signal(flight_recorder.SIGNAL)
        elif plan.do == "leave":
            for local_rank, process in self.processes.items():
                if not self.heartbeats.read(local_rank).count:
                    process.kill()
                elif plan.before < 0:
                    self.heartbeats.hold(local_rank)
                else:
                    self.heartbeats.leave(local_rank, plan.before)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()
        self.rendezvous.link.report(self.rendezvous.plan.generation, self.acted_serial, self._report_ranks())
        self.rendezvous.open()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 0) -> None:
        """Kill the ranks: one may be stopped, or wait for a dead peer. A plan asks them to leave before that."""
        self._send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.join()

    def _send_signal(self, signal_number: signal.Signals) -> None:
        for process in self.processes.values():
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, signal_number)

    def _report_ranks(self) -> tuple[RankReport, ...]:
        """Report all ranks, and count the kernel's out-of-memory kills for those that run."""
        self.kills.update(process.pid or 0 for rank, process in self.processes.items() if rank not in self.ends_ns)
        return tuple(self._report_rank(local_rank, process) for local_rank, process in self.processes.items())

    def _report_rank(self, local_rank: int, process: ForkProcess) -> RankReport:
        """Report one rank: its heartbeat and, if it has ended, its exit code, the time (ns since the epoch) and the
        reason.

        The first time that its end is seen is kept. A rank killed by SIGKILL may have run out of memory: the kernel's
        counters decide.
        """
        global_rank = self._worker_group.workers[local_rank].global_rank
        pid = process.pid or 0
        exit_code, reading = process.exitcode, self.heartbeats.read(local_rank)
        reason, reported_ns, end_ns = "", 0, 0
        if exit_code is not None:
            if exit_code == -signal.SIGKILL and local_rank not in self.ends_ns:
                self.shortages[local_rank] = self.kills.cause(pid)
            end_ns = self.ends_ns.setdefault(local_rank, epoch.now_ns())
            if exit_code:
                reported_ns, reason = rank_process.read_failure(self.logs / f"rank{global_rank}.failed")
                reason = reason or tail(self.logs / f"rank{global_rank}.err")
        state, ticks = _read_process_state(pid) if exit_code is None else ("", 0)
        return RankReport(
            rank=global_rank,
            pid=pid,
            count=reading.count,
            begun=reading.begun,
            done=reading.done,
            phase=reading.phase,
            own_ns=reading.own_ns,
            at=reading.at,
            held=reading.held,
            state=state,
            ticks=ticks,
            exit_code=exit_code,
            ended_ns=end_ns,
            reported_ns=reported_ns,
            reason=reason,
            shortage=self.shortages.get(local_rank, ""),
            stack=_read_stack(self.logs / f"rank{global_rank}.stacks") if self._reports_stacks else "",
            recorded_ns=self._publish_record(local_rank, global_rank) if self._reports_stacks or exit_code else 0,
        )

    def _publish_record(self, local_rank: int, global_rank: int) -> int:
        """Publish the flight record of a rank if it has written a new one; return the time of the last one, in ns since
        the epoch, 0 for none."""
        path = self.logs / f"rank{global_rank}.flight"
        published_ns = self._recorded_ns.get(local_rank, 0)
        with suppress(OSError):  # a rank that cannot write one
            written_ns = path.stat().st_mtime_ns
            if written_ns != published_ns:
                generation = self.rendezvous.plan.generation
                hang_records.publish_record(self.rendezvous.link.store, generation, global_rank, path.read_bytes())
                self._recorded_ns[local_rank] = written_ns
        return self._recorded_ns.get(local_rank, 0)


def _read_process_state(pid: int) -> tuple[str, int]:
    """Return (state letter, CPU ticks) of proc(5); an empty state and 0 if they cannot be read."""
    try:
        # The fields after the process name, which may contain blanks: state is the first, utime and stime follow.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return fields[0], int(fields[11]) + int(fields[12])
    except (OSError, IndexError, ValueError):
        return "", 0


def _read_stack(path: Path) -> str:
    """Return the beginning of the stack that was written last, that of the main thread; empty if there is none."""
    try:
        stacks = path.read_text("utf-8", "replace")
    except OSError:
        return ""
    return stacks[stacks.rfind("hread 0x") :][:_STACK_BYTES] if stacks else ""


def main(path: Path, node: int, parent: int | None, token: str) -> int:
    """Run the agent of `node` for the job whose SPEC is at `path`, until the job is over.

    Returns the job's exit code, or `LOST` if the supervisor is lost. `parent`: id of a process that it dies with, None
    if it was started by hand. `token`: that of the job. Ignores SIGTERM, which the supervisor handles for all ranks.
    """
    if parent is not None:
        die_with_parent(parent, signal.SIGKILL)
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    epoch.follow(spec.clock)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        store = TCPStore(spec.host, spec.port, None, False, _STORE_TIMEOUT, wait_for_workers=False)
        board = HeartbeatBoard(spec.node_ranks(node))
        link = SupervisorLink(SignedStore(store, token), node, Lease(board))
        return run(spec, link, board, path.parent, path.parent.name)
    except (DistError, BadSignature) as error:
        sys.stderr.write(f"node {node}: the supervisor at {spec.host}:{spec.port} is lost: {error}\n")
        return LOST


def run(
    spec: Spec,
    link: SupervisorLink,
    board: HeartbeatBoard,
    folder: Path,
    run_id: str,
    before_launch: Callable[[], object] = lambda: None,
) -> int:
    """Run an agent that is connected to the supervisor until the job is over; return the job's exit code.

    `folder`: the run's folder on this host; `board`: memory for the heartbeats of its ranks; `before_launch`: called
    before it starts ranks of a new generation. Writes its process id to `logs/`. Raises `DistError` if the supervisor
    is lost, `BadSignature` for a stranger's plan.
    """
    node = link.member.node
    set_process_name(f"agent{node}")
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    (logs / f"agent{node}.pid").write_text(str(os.getpid()))
    rendezvous = PlanRendezvous(link, spec, run_id, before_launch)
    Agent(rendezvous, spec, folder, board).run()
    return rendezvous.exit_code


def alone(path: Path, node: int, parent: int | None) -> int:
    """Run an agent that was not forked by a supervisor of this machine."""
    token = take_token()
    preload(msgspec.json.decode(path.read_bytes(), type=Spec).preload)
    return main(path, node, parent, token)


if __name__ == "__main__":
    raise SystemExit(alone(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None))
