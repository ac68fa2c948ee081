"""`python -m trainyard.launch.agents.elastic SPEC.json NODE [PARENT]`: the agent of one node, on torch's elastic agent.

It starts, kills and watches its node's ranks according to the supervisor's plan, and reports their state; it makes no
decisions. It can be started on any host that reaches the store named in SPEC, at any time and repeatedly. Ranks are
forked from it with torch loaded, which takes milliseconds. It has no store of its own, and its ranks meet in a store of
the supervisor: no host is special. Without the supervisor it ends, and its ranks with it.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import time
from datetime import timedelta
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import msgspec
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
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
from trainyard.launch.agents import rank_process
from trainyard.launch.agents.preload import preload
from trainyard.launch.agents.process_title import set_process_name
from trainyard.launch.agents.rank_progress import HeartbeatBoard
from trainyard.launch.launch_spec import Spec
from trainyard.launch.supervisor import messages, resource_exhaustion
from trainyard.launch.supervisor.failure_report import tail
from trainyard.launch.supervisor.messages import AgentPlan, AgentReport, Member, RankReport
from trainyard.pdeathsig import die_with_parent

_TURN_S = 0.05
_PATIENCE = timedelta(seconds=20)
"""Timeout of the store, after which the supervisor counts as lost."""


class SupervisorLink:
    """The agent's connection to the supervisor: sends reports and receives the plan."""

    def __init__(self, store: Store, node: int) -> None:
        self.store = store
        self.member = Member(node, secrets.token_hex(8))
        self._beat = 0

    def report(self, generation: int = -1, serial: int = -1, ranks: tuple[RankReport, ...] = ()) -> AgentPlan:
        """Report the state of this node; return the supervisor's current plan."""
        self._beat += 1
        node, life = self.member.node, self.member.life
        report = AgentReport(
            node=node, life=life, beat=self._beat, pid=os.getpid(), generation=generation, serial=serial, ranks=ranks
        )
        self.store.set(messages.key(node), msgspec.json.encode(report).decode())
        return msgspec.json.decode(self.store.get(messages.PLAN), type=AgentPlan)


class PlanRendezvous(RendezvousHandler):
    """A rendezvous that waits for the supervisor's plan, which names the members. `plan`: the last one it followed."""

    def __init__(self, link: SupervisorLink, spec: Spec, run_id: str) -> None:
        self.link, self.spec, self.run_id = link, spec, run_id
        self.plan = AgentPlan()
        self._shut = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a plan to run a new generation with this agent as a member."""
        while True:
            plan = self.link.report()
            if plan.do == "end":
                raise RendezvousGracefulExitError("the job is over")
            if plan.do == "run" and plan.generation > self.plan.generation and self.link.member in plan.members:
                self.plan = plan
                meet = RendezvousStoreInfo(self.spec.host, plan.port)
                rank = plan.members.index(self.link.member)
                return RendezvousInfo(self.link.store, rank, len(plan.members), meet)
            time.sleep(_TURN_S)

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

    def __init__(self, rendezvous: PlanRendezvous, spec: Spec, logs: Path) -> None:
        """`logs`: folder of the ranks' output, failure and stack files."""
        each = spec.ranks_each
        super().__init__(
            WorkerSpec(
                role="trainyard",
                local_world_size=each,
                rdzv_handler=rendezvous,
                entrypoint=spec.module,
                monitor_interval=_TURN_S,
            )
        )
        self.rendezvous, self.spec, self.logs = rendezvous, spec, logs
        self.heartbeats = HeartbeatBoard(each)
        self.processes: dict[int, ForkProcess] = {}
        self.ended: dict[int, int] = {}
        self.kills = resource_exhaustion.Kills()
        self.shortages: dict[int, str] = {}
        self.done = -1  # serial of the last plan whose signal was passed on

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Fork the ranks of a new generation, with torchrun's variables; return their process ids by local rank."""
        fork = multiprocessing.get_context("fork")
        generation = self.rendezvous.plan.generation
        self.processes, self.ended, self.shortages = {}, {}, {}
        for worker in worker_group.workers:
            variables = {
                "RANK": worker.global_rank,
                "LOCAL_RANK": worker.local_rank,
                "ROLE_RANK": worker.role_rank,
                "ROLE_NAME": self.spec.module,
                "GROUP_RANK": worker_group.group_rank,
                "WORLD_SIZE": worker.world_size,
                "LOCAL_WORLD_SIZE": self.spec.ranks_each,
                "GROUP_WORLD_SIZE": worker_group.group_world_size,
                "ROLE_WORLD_SIZE": worker.role_world_size,
                "MASTER_ADDR": worker_group.master_addr,
                "MASTER_PORT": worker_group.master_port,
                "TORCHELASTIC_RESTART_COUNT": generation,
                "TORCHELASTIC_MAX_RESTARTS": self.spec.restarts,
                "TORCHELASTIC_RUN_ID": self.rendezvous.run_id,
                "TORCHELASTIC_USE_AGENT_STORE": True,
            }
            environment = {name: str(value) for name, value in variables.items()}
            own = self.heartbeats.heartbeat(worker.local_rank)
            process = fork.Process(
                target=rank_process.main,
                args=(self.logs, os.getpid(), environment, own, self.spec.module, self.spec.args),
            )
            process.start()
            self.processes[worker.local_rank] = process
        return {local: process.pid for local, process in self.processes.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Report the ranks' state and act on the plan. Always returns healthy: the supervisor judges."""
        plan = self.rendezvous.link.report(self.rendezvous.plan.generation, self.done, self._seen())
        if plan.serial > self.done:
            self.done = plan.serial
            if plan.generation == self.rendezvous.plan.generation:
                self._act(plan)
        if plan.do in ("stop", "end") or plan.generation != self.rendezvous.plan.generation:
            self.rendezvous.set_closed()
        return RunResult(WorkerState.HEALTHY)

    def _act(self, plan: AgentPlan) -> None:
        """Pass a new plan on to the ranks: SIGUSR1 for "stacks", a request to hold or to leave for "leave"."""
        if plan.do == "stacks":
            self._signal(signal.SIGUSR1)
        elif plan.do == "leave":
            for local, process in self.processes.items():
                if not self.heartbeats.see(local).count:
                    process.kill()
                elif plan.before < 0:
                    self.heartbeats.hold(local)
                else:
                    self.heartbeats.leave(local, plan.before)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()
        self.rendezvous.link.report(self.rendezvous.plan.generation, self.done, self._seen())
        self.rendezvous.open()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 0) -> None:
        """Kill the ranks: one may be stopped, or wait for a dead peer. A plan asks them to leave before that."""
        self._signal(signal.SIGKILL)
        for process in self.processes.values():
            process.join()

    def _signal(self, sign: signal.Signals) -> None:
        for process in self.processes.values():
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, sign)

    def _seen(self) -> tuple[RankReport, ...]:
        self.kills.look(process.pid or 0 for local, process in self.processes.items() if local not in self.ended)
        return tuple(self._look(local, process) for local, process in self.processes.items())

    def _look(self, local: int, process: ForkProcess) -> RankReport:
        """Report one rank: its heartbeat and, if it has ended, its exit code, the time (ns since the epoch) and the
        reason."""
        number = self._worker_group.workers[local].global_rank
        pid = process.pid or 0
        exit_code, seen = process.exitcode, self.heartbeats.see(local)
        why, reported_at, ended = "", 0, 0
        if exit_code is not None:
            if exit_code == -signal.SIGKILL and local not in self.ended:
                self.shortages[local] = self.kills.cause(pid)
            ended = self.ended.setdefault(local, epoch.now_ns())
            if exit_code:
                reported_at, why = rank_process.read_failure(self.logs / f"rank{number}.failed")
                why = why or tail(self.logs / f"rank{number}.err")
        state, ticks = _process(pid) if exit_code is None else ("", 0)
        return RankReport(
            rank=number,
            pid=pid,
            count=seen.count,
            begun=seen.begun,
            done=seen.done,
            phase=seen.phase,
            own_ns=seen.own_ns,
            at=seen.at,
            held=seen.held,
            state=state,
            ticks=ticks,
            exit_code=exit_code,
            ended=ended,
            told=reported_at,
            why=why,
            shortage=self.shortages.get(local, ""),
        )


def _process(pid: int) -> tuple[str, int]:
    """Return (state letter, CPU ticks) of proc(5); an empty state and 0 if they cannot be read."""
    try:
        parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return parts[0], int(parts[11]) + int(parts[12])
    except (OSError, IndexError, ValueError):
        return "", 0


def main(path: Path, node: int, parent: int | None) -> int:
    """Run the agent of `node` for the job whose SPEC is at `path`; return its exit code: 0, or 4 if the supervisor is
    lost. `parent`: id of a process that it dies with, if any."""
    if parent is not None:
        die_with_parent(parent, signal.SIGKILL)
    set_process_name(f"agent{node}")
    spec = msgspec.json.decode(path.read_bytes(), type=Spec)
    epoch.follow(spec.clock)
    # All nodes have the same size, so that global ranks follow from a node's index without communication.
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a SIGTERM sent to all processes is handled by the supervisor
    logs = path.parent / "logs"
    logs.mkdir(exist_ok=True)
    (logs / f"agent{node}.pid").write_text(str(os.getpid()))
    try:
        store = TCPStore(spec.host, spec.port, None, False, _PATIENCE, wait_for_workers=False)
        rendezvous = PlanRendezvous(SupervisorLink(store, node), spec, path.parent.name)
        agent = Agent(rendezvous, spec, logs)
        agent.run()
    except DistError as error:
        sys.stderr.write(f"node {node}: the supervisor at {spec.host}:{spec.port} is lost: {error}\n")
        return 4
    return 0


def alone(path: Path, node: int, parent: int | None) -> int:
    """Run an agent that was not forked by a supervisor of this machine."""
    preload(msgspec.json.decode(path.read_bytes(), type=Spec).preload)
    return main(path, node, parent)


if __name__ == "__main__":
    raise SystemExit(alone(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None))
