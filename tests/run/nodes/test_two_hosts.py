"""Two hosts: clocks 1,000 s apart, disjoint folders, a cut network, a notice, a requeue and a wrong token."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest

from tests.marks import nightly
from tests.ports import free_port
from tests.processes import alive, until
from tests.tiny_job import TWO_REPLICAS
from trainyard.job_file import parse
from trainyard.launch.agents.lease import FENCE_S
from trainyard.launch.launch_spec import LEFT, NODE_MODULE, TOKEN
from trainyard.launch.supervisor import event_log
from trainyard.launch.supervisor.agent_reports import SILENT_S
from trainyard.record import DeviceSeen, Run
from trainyard.run.local.harness import execute
from trainyard.run.nodes.missing_samples import missing_samples
from trainyard.run.parts.part import joined_run_id
from trainyard.run.session import Session
from trainyard.store.store import Store

pytestmark = [pytest.mark.torch, pytest.mark.slow]

JOB = f"""{TWO_REPLICAS}dataset = "text.txt"
[measure]
warmup = 2
steps = {{steps}}
repeats = 2
profiled = 0
[checkpoint]
interval = 5
[recovery]
nodes = 2
max_restarts = 3
hang_timeout_s = 60.0
"""
PATIENCE_S = 240.0


def write_text(folder: Path) -> None:
    (folder / "text.txt").write_bytes(bytes(range(256)) * 40)


class Hosts:
    """The processes of a job's two nodes. `prefixes`: node -> the command that its process is started with."""

    def __init__(self, folder: Path, head: str, prefixes: Mapping[int, Sequence[str]], steps: int = 40) -> None:
        pytest.importorskip("torch")
        self.folder, self.head, self.prefixes = folder, head, prefixes
        self.text = JOB.format(steps=steps)
        write_text(folder)
        (folder / "job.toml").write_text(self.text)
        self.store = Store(folder / "store")
        self.run_folder = self.store.runs / joined_run_id("77")
        self.names = {0: "node0", 1: "node1"}
        """Node -> name of the folder of its host."""
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, node: int, **environment: str) -> None:
        command = [*self.prefixes.get(node, ()), sys.executable, "-P", "-m", NODE_MODULE]
        command += ["--folder", str(self.folder / self.names[node])]
        command += ["--job-id", "77", "--nodes", "2", "--node", str(node), "--head", self.head]
        command += ["--job", "job.toml", "--shared", str(self.folder / "shared")]
        variables = {TOKEN: "secret", "TRAINYARD_STORE": str(self.store.root), **environment}
        with (self.folder / f"node{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                [*command, "--gather-s", "120"], cwd=self.folder, stdout=log, stderr=log,
                env={**os.environ, **variables}, start_new_session=True,
            )  # fmt: skip

    def start_both(self) -> None:
        for node in (0, 1):
            self.start(node)

    def pid(self, node: int, name: str) -> int:
        """The process id that a process of the node has recorded; 0 without one."""
        folder = self.folder / self.names[node] / self.run_folder.name if node else self.run_folder
        path = folder / "logs" / f"{name}.pid"
        return int(path.read_text() or 0) if path.exists() else 0

    def steps(self, node: int = 0) -> int:
        """Number of samples of the node's rank, in all attempts."""
        folder = self.folder / self.names[node] / self.run_folder.name if node else self.run_folder
        path = folder / "samples" / f"rank{node}.jsonl"
        return len(path.read_bytes().splitlines()) if path.exists() else 0

    def until_steps(self, steps: int) -> None:
        assert until(lambda: min(self.steps(0), self.steps(1)) >= steps, PATIENCE_S), self.logs

    def exit_codes(self) -> list[int]:
        return [self.processes[node].wait(PATIENCE_S) for node in sorted(self.processes)]

    @property
    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("node*.log")))

    def end(self) -> None:
        for node, process in self.processes.items():
            for pid in (process.pid, *([self.pid(0, "supervisor")] if node == 0 else [])):
                try:
                    os.killpg(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
            process.wait()

    def run(self) -> Run:
        return self.store.load(self.run_folder.name)


LocalLosses = Callable[[str], list[tuple[int, int, float | None]]]
"""The losses of a job file's text, trained on one host without faults."""


@pytest.fixture(scope="module")
def local_losses(tmp_path_factory: pytest.TempPathFactory) -> LocalLosses:
    """Trains each job once for all tests of the module."""

    @cache
    def train(text: str) -> list[tuple[int, int, float | None]]:
        folder = tmp_path_factory.mktemp("local")
        write_text(folder)
        cores = (DeviceSeen(index=0, name="cores", vendor="cpu", facts={"cores": "2"}),)
        session = Session(Store(folder / "store"), lambda _: [], devices=cores)
        with chdir(folder):
            return losses(execute(parse(text, "job.toml"), text, session))

    return train


def losses(run: Run) -> list[tuple[int, int, float | None]]:
    return sorted((sample.rank, sample.step, sample.loss) for sample in run.kept())


@pytest.fixture
def namespaces() -> Iterator[dict[int, list[str]]]:
    """Node -> the prefix of a command in its network namespace; node 1 is in a time namespace too."""
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"network namespaces need root, iproute2 and util-linux; missing: {missing or ['root']}")
    names, links = [f"ty{node}-{os.getpid()}" for node in range(2)], ["ty0", "ty1"]

    def ip(*arguments: str) -> None:
        result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if result.returncode:
            pytest.skip(f"network namespaces cannot be made here: {result.stderr.strip()}")

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for node, (name, link) in enumerate(zip(names, links, strict=True)):
            ip("-n", name, "addr", "add", f"10.77.0.{node + 1}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        enter = [["ip", "netns", "exec", name] for name in names]
        later = ["unshare", "--fork", "--kill-child", "--time", "--monotonic", "1000"]
        yield {0: enter[0], 1: [*enter[1], *later]}
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_a_cut_host_ends_its_ranks_and_comes_back(
    tmp_path: Path, namespaces: dict[int, list[str]], local_losses: LocalLosses
) -> None:
    hosts = Hosts(tmp_path, "10.77.0.1:29477", namespaces, steps=60)
    cable = ["ip", "-n", namespaces[1][3], "link", "set", "ty1"]
    try:
        hosts.start_both()
        hosts.until_steps(10)
        rank = hosts.pid(1, "rank1")
        subprocess.run([*cable, "down"], check=True)  # without any packet about it
        assert until(lambda: not alive(rank), FENCE_S + 10.0), "the ranks of a cut host end themselves"
        assert until(lambda: bool(_faults(hosts)), SILENT_S + 20.0)
        subprocess.run([*cable, "up"], check=True)
        assert hosts.exit_codes() == [0, 0], hosts.logs
    finally:
        hosts.end()
    run = hosts.run()
    lost = [incident for incident in run.incidents if incident.kind != "slow"]  # as a rank is on a busy machine
    assert [(incident.kind, incident.node) for incident in lost] == [("agent_death", 1)], run.incidents
    assert run.state == "complete"
    (fault,) = lost
    assert SILENT_S - 1 <= fault.detect_s < SILENT_S + 10
    assert losses(run) == local_losses(hosts.text)
    # Both ranks end a step together: on one clock, though those of the hosts are 1,000 s apart.
    ends: dict[tuple[int, int], list[int]] = {}
    for sample in run.kept():
        ends.setdefault((sample.attempt, sample.step), []).append(sample.ended_ns)
    assert all(len(pair) == 2 for pair in ends.values())
    assert max(abs(first - second) for first, second in ends.values()) < 30 * 10**9


def test_notice_on_any_node_saves_and_a_requeue_resumes(tmp_path: Path, local_losses: LocalLosses) -> None:
    hosts = Hosts(tmp_path, f"127.0.0.1:{free_port()}", {}, steps=40)
    try:
        hosts.start_both()
        hosts.until_steps(7)
        hosts.processes[1].send_signal(signal.SIGTERM)
        assert hosts.exit_codes() == [LEFT, LEFT], hosts.logs
        saved = hosts.run()
        assert [incident.kind for incident in saved.incidents] == ["preempted"]
        hosts.start_both()
        assert hosts.exit_codes() == [0, 0], hosts.logs
    finally:
        hosts.end()
    run = hosts.run()
    assert (run.state, run.job_id, run.missing_ranks) == ("complete", "77", ())
    assert losses(run) == local_losses(hosts.text)
    steps = [sample.step for sample in run.samples if sample.rank == 1]
    assert sorted(steps) == list(range(run.job.measure.in_all)), "no step is repeated after a notice"


@pytest.mark.parametrize("replaced", [0, nightly(1)])
def test_requeue_on_another_host_resumes_and_lists_missing_samples(
    tmp_path: Path, local_losses: LocalLosses, replaced: int
) -> None:
    """The head's store, or the folder of node 1, is not on the host that replaces it; the checkpoints are shared."""
    hosts = Hosts(tmp_path, f"127.0.0.1:{free_port()}", {}, steps=40)
    try:
        hosts.start_both()
        hosts.until_steps(7)
        hosts.processes[1].send_signal(signal.SIGTERM)
        assert hosts.exit_codes() == [LEFT, LEFT], hosts.logs
        saved = {sample.step for sample in hosts.run().kept()}
        assert saved == set(range(max(saved) + 1))
        hosts.names[replaced] = "spare"
        if replaced == 0:
            hosts.store = Store(tmp_path / "another")
            hosts.run_folder = hosts.store.runs / hosts.run_folder.name
        hosts.start_both()
        assert hosts.exit_codes() == [0, 0], hosts.logs
    finally:
        hosts.end()
    run = hosts.run()
    assert (run.state, run.missing_ranks) == ("complete", ())
    expected = local_losses(hosts.text)
    lost = missing_samples(run, event_log.read(hosts.run_folder))
    # Node 1 delivered its samples to the head when it left.
    assert lost == ({(0,): tuple(sorted(saved))} if replaced == 0 else {})
    assert len(run.part_notes) == len(lost)
    missing = {(rank, step) for ranks, steps in lost.items() for rank in ranks for step in steps}
    assert losses(run) == [(rank, step, loss) for rank, step, loss in expected if (rank, step) not in missing]


@pytest.mark.nightly
def test_samples_of_a_lost_node_are_listed_when_a_spare_replaces_it(tmp_path: Path, local_losses: LocalLosses) -> None:
    hosts = Hosts(tmp_path, f"127.0.0.1:{free_port()}", {}, steps=40)
    try:
        hosts.start_both()
        hosts.until_steps(12)
        os.killpg(hosts.processes[1].pid, signal.SIGKILL)
        hosts.names[1] = "spare"
        hosts.start(1)
        assert hosts.exit_codes() == [0, 0], hosts.logs
    finally:
        hosts.end()
    run = hosts.run()
    ((ranks, steps),) = missing_samples(run, event_log.read(hosts.run_folder)).items()
    assert ranks == (1,)
    assert steps == tuple(range(len(steps)))
    assert len(steps) >= 10, "up to the last checkpoint before the loss"
    assert len(run.part_notes) == 1
    expected = local_losses(hosts.text)
    assert losses(run) == [item for item in expected if item[:2] not in {(1, step) for step in steps}]


def test_agent_without_the_token_takes_no_part(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, f"127.0.0.1:{free_port()}", {})
    try:
        hosts.start(0)
        assert until(lambda: bool(hosts.pid(0, "agent0")), PATIENCE_S), hosts.logs
        hosts.start(1, **{TOKEN: "guess"})
        assert not until(lambda: bool(_processes_in(hosts.folder / "node1")), 6.0)
        hosts.processes[1].kill()
        hosts.start(1)
        hosts.until_steps(1)
    finally:
        hosts.end()
    assert not any(b"secret" in path.read_bytes() for path in hosts.folder.rglob("*") if path.is_file())


def _processes_in(folder: Path) -> list[Path]:
    """Process ids that ranks have recorded in a node's folder."""
    return list(folder.glob("*/logs/rank*.pid"))


def _faults(hosts: Hosts) -> list[event_log.JobEvent]:
    return [event for event in event_log.read(hosts.run_folder) if event.type == "fault"]
