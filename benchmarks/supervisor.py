"""Measures a supervisor of many ranks: `python -m benchmarks.supervisor [RANKS...] [--ranks-per-node N]`.

The supervisor is the real one, with its store in a process of its own. Its agents are simulated: processes with one
connection to the store for each node, which send signed reports on ranks that step, as real agents do, and follow the
plan. For each number of ranks it prints the cost of a steady second, and the time until a dead rank, a hung rank
and a silent agent are noticed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.process import process_times
from trainyard.launch import epoch
from trainyard.launch.launch_spec import FILE, TOKEN, Spec
from trainyard.launch.supervisor import event_log, messages
from trainyard.launch.supervisor.listen import raise_open_files_limit
from trainyard.launch.supervisor.messages import AgentPlan, AgentReport, RankReport
from trainyard.launch.supervisor.signed_store import SignedStore

_SECRET = "benchmark"  # noqa: S105 - protects nothing
_STEADY_S = 10.0
_HANG_TIMEOUT_S = 5.0
_STEP_S = 0.5
_WAIT_S = 240.0
_STACK = 'Thread 0x1 (most recent call first):\n  File "/x/train.py", line 3 in step'
_HEALTHY, _DEAD, _HUNG, _SILENT = range(4)


class Cost(NamedTuple):
    """What a supervisor of `ranks` ranks on `nodes` nodes costs, and how fast it notices faults."""

    ranks: int
    nodes: int
    report_s: float
    launch_s: float
    messages_per_s: float
    megabytes_per_s: float
    cpu_cores: float
    loop_ms: float
    memory_mb: float
    dead_s: float
    hung_s: float
    silent_s: float


class SimulatedAgent:
    """The simulated agent of a node."""

    def __init__(self, node: int, spec: Spec) -> None:
        from torch._C._distributed_c10d import TCPStore

        raw = TCPStore(spec.host, spec.port, None, False, timedelta(seconds=60), wait_for_workers=False)
        self.store, self.node, self.spec = SignedStore(raw, _SECRET), node, spec
        self.plan, self.beat, self.life = AgentPlan(serial=-1), 0, os.urandom(8).hex()
        self.generation, self.first_rank, self.began_s, self.sent_bytes = -1, 0, 0.0, 0
        self.killed, self.frozen_s = -1, 0.0

    def turn(self, fault: int) -> None:
        """Send one report and follow the plan. `fault`: that of this node."""
        now_s = time.monotonic()
        self.beat += 1
        ranks = (
            tuple(self._rank(rank, now_s, fault) for rank in range(self.spec.node_ranks(self.node)))
            if self._runs
            else ()
        )
        report = AgentReport(
            node=self.node, life=self.life, beat=self.beat, pid=1, generation=self.generation if ranks else -1,
            serial=self.plan.serial, ranks=ranks, host=f"node{self.node}",
        )  # fmt: skip
        data = msgspec.json.encode(report)
        self.sent_bytes = len(data) + 32
        self.store.set(messages.key(self.node), data)
        if int(self.store.get(messages.SERIAL)) != self.plan.serial:
            self.plan = msgspec.json.decode(self.store.get(messages.PLAN), type=AgentPlan)
            self._follow(now_s)

    @property
    def _runs(self) -> bool:
        return self.generation == self.plan.generation >= 0

    def _follow(self, now_s: float) -> None:
        """Start ranks of a new generation."""
        nodes = [member.node for member in self.plan.members]
        if self.plan.do == "run" and self.plan.generation > self.generation and self.node in nodes:
            self.generation, self.began_s, self.frozen_s = self.plan.generation, now_s, 0.0
            self.first_rank = sum(map(self.spec.node_ranks, nodes[: nodes.index(self.node)]))

    def _rank(self, local_rank: int, now_s: float, fault: int) -> RankReport:
        """The report on a rank, which steps every `_STEP_S` unless the fault, or the plan, has stopped it."""
        if fault == _HUNG and not self.frozen_s:
            self.frozen_s = now_s
        steps = int(((self.frozen_s or now_s) - self.began_s) / _STEP_S)
        stopped = self.plan.do in ("stop", "end")
        exit_code = -9 if stopped else 1 if fault == _DEAD and local_rank == 0 else None
        at = epoch.now_ns()
        return RankReport(
            rank=self.first_rank + local_rank, pid=4_000_000 + local_rank, count=2 * steps + 1, begun=steps, done=steps,
            phase="stepping", own_ns=steps * 400_000_000, at=at, state="S", ticks=steps * 40, exit_code=exit_code,
            ended_ns=at if exit_code is not None else 0, reported_ns=at if exit_code == 1 else 0,
            stack=_STACK * (self.plan.do == "stacks"),
        )  # fmt: skip


def run_agents(nodes: list[int], spec: Spec, fault: Any, sent: Any) -> None:
    """Run the simulated agents of `nodes` in this process until the job is over. `fault`: that of all ranks (hung) or
    of the last node; `sent`: gets the bytes of a report of each node."""
    agents = [SimulatedAgent(node, spec) for node in nodes]
    while not all(agent.plan.do == "end" for agent in agents):
        began_s = time.monotonic()
        for agent in agents:
            is_culprit = agent.node == spec.nodes - 1
            own = fault.value if is_culprit or fault.value == _HUNG else _HEALTHY
            if own != _SILENT:
                agent.turn(own)
        with sent.get_lock():
            sent.value = agents[0].sent_bytes
        time.sleep(max(0.0, spec.report_s - (time.monotonic() - began_s)))


def measure(ranks: int, ranks_per_node: int, processes: int) -> Cost:
    """Measure a supervisor of `ranks` ranks, whose simulated agents share `processes` processes."""
    nodes = ranks // ranks_per_node
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = Spec(
            ranks=ranks, nodes=nodes, port=0, module="simulated", started=0, gather_s=_WAIT_S, max_restarts=9,
            hang_timeout_s=_HANG_TIMEOUT_S,
        )  # fmt: skip
        (folder / FILE).write_bytes(msgspec.json.encode(spec))
        command = [sys.executable, "-P", "-m", "trainyard.launch.supervisor.supervisor_main", str(folder / FILE)]
        supervisor = subprocess.Popen([*command, str(os.getpid())], env={**os.environ, TOKEN: _SECRET})
        agents: list[Any] = []
        try:
            while not (spec := msgspec.json.decode((folder / FILE).read_bytes(), type=Spec)).port:
                time.sleep(0.1)
            time.sleep(2.0)  # its store opens after torch is loaded
            context = multiprocessing.get_context("spawn")
            fault, sent = context.Value("i", _HEALTHY), context.Value("i", 0)
            for index in range(processes):
                own = list(range(index, nodes, processes))
                agents.append(context.Process(target=run_agents, args=(own, spec, fault, sent), daemon=True))
                agents[-1].start()
            began_s = time.monotonic()
            _wait_for(folder, "launched", 1)
            launch_s = time.monotonic() - began_s
            time.sleep(3.0)
            cpu_s = process_times(supervisor.pid).cpu_s
            began_s = time.monotonic()
            time.sleep(_STEADY_S)
            elapsed_s = time.monotonic() - began_s
            cores = (process_times(supervisor.pid).cpu_s - cpu_s) / elapsed_s
            reports_per_s = nodes / spec.report_s
            report_bytes = sent.value
            memory_mb = _memory_mb(supervisor.pid)
            noticed = [_strike(folder, fault, kind, number) for number, kind in enumerate((_DEAD, _HUNG, _SILENT))]
        finally:
            supervisor.kill()
            supervisor.wait()
            for agent in agents:
                agent.kill()
                agent.join()
    # A report, its copy to the supervisor, and the serial with its signature.
    megabytes_per_s = reports_per_s * (2 * report_bytes + 40) / 1e6
    return Cost(
        ranks=ranks, nodes=nodes, report_s=spec.report_s, launch_s=launch_s, messages_per_s=2 * reports_per_s,
        megabytes_per_s=megabytes_per_s, cpu_cores=cores, loop_ms=cores * spec.report_s * 1e3, memory_mb=memory_mb,
        dead_s=noticed[0], hung_s=noticed[1], silent_s=noticed[2],
    )  # fmt: skip


def _strike(folder: Path, fault: Synchronized[int], kind: int, number: int) -> float:
    """Inject a fault, and return the seconds until the supervisor has noticed it; then heal it and wait for the next
    launch. `number`: of earlier faults."""
    began_s = time.monotonic()
    fault.value = kind
    _wait_for(folder, "fault", number + 1)
    noticed_s = time.monotonic() - began_s
    fault.value = _HEALTHY
    _wait_for(folder, "launched", number + 2)
    time.sleep(3.0)
    return noticed_s


def _wait_for(folder: Path, kind: str, count: int) -> None:
    """Wait until the event log has `count` events of a kind."""
    deadline_s = time.monotonic() + _WAIT_S
    while sum(event.type == kind for event in event_log.read(folder)) < count:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no {kind} event in {_WAIT_S:g} s: {event_log.read(folder)[-3:]}")
        time.sleep(0.02)


def _memory_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))


def main() -> None:
    """Measure each number of ranks of the command line, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--processes", type=int, default=4, help="Processes that the simulated agents share.")
    options = parser.parse_args()
    raise_open_files_limit()
    print(" ".join(f"{name:>16}" for name in Cost._fields))
    for ranks in options.ranks:
        cost = measure(ranks, options.ranks_per_node, options.processes)
        print(
            " ".join(f"{value:>16,.3f}" if isinstance(value, float) else f"{value:>16,}" for value in cost), flush=True
        )


if __name__ == "__main__":
    main()
