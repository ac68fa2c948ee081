"""Jobs on several hosts: addresses, the job on its nodes, and the parts that the nodes deliver."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from tests.tiny_job import TWO_REPLICAS
from trainyard import job_file
from trainyard.errors import BadInput, BadJob, CommandFailed, EnvironmentFailed
from trainyard.launch.supervisor import find_cause
from trainyard.launch.supervisor.listen import is_loopback, listen
from trainyard.launch.supervisor.messages import RankReport
from trainyard.record import DeviceSeen, Sample
from trainyard.run.chaos import node_faults
from trainyard.run.chaos.fault_plan import Fault, FaultPlan
from trainyard.run.nodes import head, hosts
from trainyard.run.nodes.collect import collect, merge
from trainyard.run.nodes.host_address import interface_of
from trainyard.run.nodes.hosts import Hosts, parse_address
from trainyard.run.session import Session
from trainyard.store.store import Store

SAVING = TWO_REPLICAS + "[checkpoint]\ninterval = 3\n[recovery]\nmax_restarts = 4\n"


def some_hosts(**fields: Any) -> Hosts:
    return Hosts(**{"job_id": "7", "nodes": 2, "host": "127.0.0.1", "port": 1, "token": "secret", **fields})


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("node0:29400", ("node0", 29400)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[fe80::1]:65535", ("fe80::1", 65535))],
)
def test_addresses_of_heads(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["node0", "node0:", ":29400", "node0:0", "node0:65536", "node0:x", "node0:-1", "a:²"])
def test_bad_addresses_are_refused(text: str) -> None:
    with refused(BadInput, repr(text), "HOST:PORT"):
        parse_address(text)


def test_token_is_not_shown() -> None:
    assert "secret" not in repr(some_hosts())


def test_interface_of_own_addresses() -> None:
    assert interface_of("127.0.0.1") in ("lo", "lo0")
    assert interface_of("203.0.113.77") == interface_of("no address") == ""


def test_loopback_names_and_a_port_in_use() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.1.1", "::1", "10.0.0.1", "node0")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    with listen("127.0.0.1", 0) as listening, pytest.raises(OSError, match="in use"):
        listen("127.0.0.1", listening.getsockname()[1])
    with pytest.raises(OSError, match="assign"):
        listen("203.0.113.77", 0)


def test_job_gets_the_number_of_its_nodes() -> None:
    job = job_file.parse(SAVING, "job.toml")
    on_two, text = head.on_nodes(job, SAVING, 2)
    assert on_two.recovery.nodes == 2
    assert job_file.parse(text, "job.toml") == on_two
    assert head.on_nodes(on_two, text, 2) == (on_two, text)
    with refused(BadJob, "nodes = 2", "3 nodes"):
        head.on_nodes(on_two, text, 3)


def test_checkpoints_need_a_shared_folder(tmp_path: Path) -> None:
    job = job_file.parse(SAVING, "job.toml")
    with refused(BadJob, "interval = 3", "--shared"):
        head.recovery_notice(job, some_hosts())
    assert str(tmp_path) in head.recovery_notice(job, some_hosts(shared=tmp_path))
    without = job_file.parse(SAVING.replace("interval = 3", "interval = 0"), "job.toml")
    assert "first step" in head.recovery_notice(without, some_hosts())


def test_shared_folder_is_recognised_by_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_MARK_WAIT_S", 0.0)
    shared, own, other = tmp_path / "shared", tmp_path / "head" / "run1", tmp_path / "node" / "run1"
    for folder in (own, other):
        folder.mkdir(parents=True)
    hosts.mark_shared(own, shared)
    mark = (own / hosts.MARK).read_text()
    hosts.check_shared(other, shared, mark)
    (own / "checkpoints" / "step-000001").mkdir()
    assert (other / "checkpoints" / "step-000001").is_dir()
    hosts.check_shared(other, None, None)
    with pytest.raises(EnvironmentFailed):
        hosts.check_shared(other, tmp_path / "elsewhere", mark)
    with pytest.raises(EnvironmentFailed):
        hosts.check_shared(other, None, mark)


def test_own_checkpoints_are_not_hidden_by_shared_ones(tmp_path: Path) -> None:
    (tmp_path / "run1" / "checkpoints").mkdir(parents=True)
    with pytest.raises(BadInput):
        hosts.link_checkpoints(tmp_path / "run1", tmp_path / "shared")


# Parts


def make_sample(rank: int, step: int, attempt: int) -> Sample:
    return Sample(
        step=step, rank=rank, repeat=0, wall_ns=1, tokens=1, loss=float(step), memory_bytes=1, attempt=attempt,
        ended_ns=attempt * 1000 + step,
    )  # fmt: skip


def write_samples(folder: Path, rank: int, samples: list[tuple[int, int]], end: bytes = b"") -> None:
    for name in ("samples", "facts", "logs", "life"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = [msgspec.json.encode(make_sample(rank, step, attempt)) + b"\n" for attempt, step in samples]
    (folder / "samples" / f"rank{rank}.jsonl").write_bytes(b"".join(lines) + end)
    (folder / "facts" / f"rank{rank}.json").write_text(folder.name)
    (folder / "life" / f"rank{rank}.jsonl").write_text(f"{folder.name}\nboth\n")


KEYS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)))


@given(own=KEYS, other=KEYS)
def test_samples_of_a_moved_rank_are_those_of_all_nodes(
    tmp_path_factory: pytest.TempPathFactory, own: set[tuple[int, int]], other: set[tuple[int, int]]
) -> None:
    root = tmp_path_factory.mktemp("merge")
    write_samples(root / "run", 0, sorted(own))
    write_samples(root / "part", 0, sorted(other), end=b'{"step":')
    for _ in range(2):  # a part that is merged again changes nothing
        merge(root / "part", root / "run")
    lines = (root / "run" / "samples" / "rank0.jsonl").read_bytes().splitlines()
    decoded = [msgspec.json.decode(line, type=Sample) for line in lines]
    merged = [(sample.attempt, sample.step) for sample in decoded]
    assert merged == sorted(own | other)
    latest = max(other, default=(-1, -1)) >= max(own, default=(-1, -1))
    assert (root / "run" / "facts" / "rank0.json").read_text() == ("part" if latest else "run")
    assert (root / "run" / "life" / "rank0.jsonl").read_text() == "run\nboth\npart\n"


def test_missing_and_hostile_parts_are_named_and_the_rest_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_samples(run, 0, [(0, 0)])
    (run / "parts").mkdir()
    (run / "parts" / "node1.part").write_bytes(b"not an archive")
    (run / "parts" / "transfers.json").write_text('{"1": {"bytes": 14}, "2": {"bytes": 9, "problem": "3 of 9"}}')
    collected = collect(run, some_hosts(nodes=4), 3)
    assert collected.nodes == collected.bytes == 0
    assert [sentence.split(" is ")[0].split(" cannot ")[0] for sentence in collected.missing] == [
        "the part of node 1", "the part of node 2", "the part of node 3",
    ]  # fmt: skip
    assert [(share.ranks, share.missing) for share in collected.shares] == [((0,), False), ((1, 2), True)]
    assert len((run / "samples" / "rank0.jsonl").read_bytes().splitlines()) == 1
    assert not (run / "parts" / "node1.part").exists()


# Chaos on nodes


@given(seed=st.integers(0, 10**6), kills=st.integers(1, 8))
def test_random_plans_fit_the_job(seed: int, kills: int) -> None:
    job = job_file.parse(SAVING.replace("max_restarts = 4", "max_restarts = 8"), "job.toml")
    plan = node_faults.random_plan(job, 2, kills, seed)
    assert plan == node_faults.random_plan(job, 2, kills, seed)
    steps = [fault.step for fault in plan.fault]
    assert steps == sorted(set(steps))
    assert all(2 <= step < job.measure.in_all - 1 for step in steps)
    counts = [sum(fault.kind == kind for fault in plan.fault) for kind in node_faults.KINDS]
    assert max(counts) - min(counts) <= 1
    assert all(fault.rank < 2 and fault.node < 2 for fault in plan.fault)


def test_too_many_kills_are_refused() -> None:
    job = job_file.parse(SAVING, "job.toml")
    with refused(BadInput, "5 kills", "max_restarts = 4"):
        node_faults.random_plan(job, 2, 5, 0)
    with refused(BadInput, "100 kills"):
        node_faults.random_plan(job, 2, 100, 0)


def test_node_that_does_not_exit_is_a_failed_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_file.parse(SAVING, "job.toml")
    nodes = node_faults.Nodes(job, some_hosts(), tmp_path, Session(Store(tmp_path / "store"), lambda _: []))
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(node_faults, "_PATIENCE_S", 0.05)
    nodes.start(1)
    try:
        with refused(CommandFailed, "node 1", "0.05 s"):
            nodes.wait_for_end()
    finally:
        nodes.end()


# Many ranks


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9), st.integers(0, 10**6))
def test_median_of_the_others_as_by_brute_force(own_ms: list[int], seed: int) -> None:
    """Slow are the ranks that exceed 1.5 times the upper median of the others, by more than 5 % of a step."""
    looking, step_ns = find_cause.Slowness(), 1000
    slow: list[tuple[int, float]] = []
    order = list(range(len(own_ms)))
    random.Random(seed).shuffle(order)  # noqa: S311 - an order that can be repeated
    for window in range(4):
        done = 8 * window
        reports = [
            RankReport(rank=rank, pid=1, done=done, own_ns=done * own_ms[rank] * 10, at=done * step_ns)
            for rank in order
        ]
        slow += looking.update(reports)
    expected = {}
    for rank, own in enumerate(own_ms):
        others = sorted(10 * ms for other, ms in enumerate(own_ms) if other != rank)
        median = others[len(others) // 2]
        if 10 * own > 1.5 * median and 10 * own - median > 0.05 * step_ns:
            expected[rank] = 10 * own / max(median, 1.0)
    assert dict(slow) == pytest.approx(expected)


@pytest.mark.torch
@pytest.mark.slow
def test_killed_processes_and_nodes_leave_the_losses_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kill of each kind; the benchmark of ten is `trainyard run chaos-nodes`."""
    pytest.importorskip("torch")
    (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 40)
    monkeypatch.chdir(tmp_path)
    text = SAVING.replace("[checkpoint]", "[measure]\nwarmup = 2\nsteps = 25\nrepeats = 2\nprofiled = 0\n[checkpoint]")
    text = text.replace("[recovery]\n", "[recovery]\nhang_timeout_s = 60.0\n")
    text = text.replace("tokens_per_step = 128\n", f'tokens_per_step = 128\ndataset = "{tmp_path}/text.txt"\n')
    job = job_file.parse(text, "job.toml")
    cores = (DeviceSeen(index=0, name="cores", vendor="cpu", facts={"cores": "2"}),)
    session = Session(Store(tmp_path / "store"), lambda _: [], devices=cores)
    plan = node_faults.random_plan(job, 2, 4, seed=2)
    result = node_faults.execute(job, text, 2, plan, session)
    assert result.failure is None
    assert [(fault.outcome, fault.losses) for fault in result.score.faults] == [("recovered", "identical")] * 4
    assert [fault.correctly_blamed for fault in result.score.faults] == [True] * 4, result.score


@pytest.mark.torch
@pytest.mark.slow
def test_unequal_nodes_with_unequal_shares_survive_a_kill(tmp_path: Path) -> None:
    """Two ranks on the first node, and one with twice their batch share on the second."""
    pytest.importorskip("torch")
    text = SAVING.replace("dp_replicate = 2\n", "dp_replicate = 3\nbatch_shares = [1, 1, 2]\n")
    text = text.replace("[recovery]\n", "[recovery]\nnodes = 2\nranks_per_node = [2, 1]\n")
    text += "[measure]\nwarmup = 1\nsteps = 11\nrepeats = 1\nprofiled = 0\n"
    job = job_file.parse(text, "job.toml")
    cores = (DeviceSeen(index=0, name="cores", vendor="cpu", facts={"cores": "3"}),)
    session = Session(Store(tmp_path / "store"), lambda _: [], devices=cores)
    result = node_faults.execute(job, text, 2, FaultPlan(fault=(Fault(kind="kill_worker", rank=2, step=5),)), session)
    [fault] = result.score.faults
    assert (fault.outcome, fault.losses, fault.correctly_blamed) == ("recovered", "identical", True)
    assert (fault.blamed_rank, fault.blamed_node) == (2, 1)
    assert {(sample.rank, sample.tokens) for sample in result.run.samples} == {(0, 32), (1, 32), (2, 64)}
