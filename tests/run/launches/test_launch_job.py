"""How a job's ranks are divided over nodes, and what a launch's request and record contain."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.launch.requests import JOB
from tests.refused import refused
from trainyard import job_file, machine
from trainyard.errors import BadInput, UnknownName
from trainyard.job import Recovery
from trainyard.launch.fabric_environment import Fabric
from trainyard.launch_request import Component, Container, JobStatus, LaunchRequest, SchedulerOptions
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.run.launches import launch_job
from trainyard.run.launches.launch_job import LaunchOptions, build_request, describe
from trainyard.run.launches.launch_record import LaunchRecord, find_record, list_records, write_record

SIXTEEN = replace(JOB, machine="h100", layout=Layout(dp_replicate=16), recipe=Recipe(seq_len=8, tokens_per_step=128))

UNEQUAL = (Component(nodes=1, ranks_per_node=8), Component(nodes=2, ranks_per_node=4))


def test_machine_determines_nodes_accelerators_and_fabric(tmp_path: Path) -> None:
    request = build_request(SIXTEEN, LaunchOptions(environment={"NCCL_NET": "Socket"}), "ab", tmp_path)
    assert [(each.nodes, each.ranks_per_node) for each in request.components] == [(2, 8)]
    assert request.scheduler.accelerators_per_node == 8
    assert request.environment["NCCL_IB_TIMEOUT"].value == "22"
    assert request.environment["NCCL_NET"].value == "Socket", "the user's variable wins"


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "accelerators"),
    [("gb200", 72, 18, 4), ("gb300", 8, 2, 4), ("trn2", 128, 2, 0), ("trn3", 64, 1, 0), ("h100", 8, 1, 8)],
)
def test_nodes_are_hosts_not_link_domains(tmp_path: Path, name: str, ranks: int, nodes: int, accelerators: int) -> None:
    recipe = Recipe(seq_len=8, tokens_per_step=8 * ranks)
    job = replace(JOB, machine=name, layout=Layout(dp_replicate=ranks), recipe=recipe)
    request = build_request(job, LaunchOptions(), "ab", tmp_path)
    assert request.nodes == nodes
    assert request.scheduler.accelerators_per_node == accelerators


def test_job_without_a_machine_uses_the_nodes_of_recovery(tmp_path: Path) -> None:
    job = replace(JOB, recovery=replace(JOB.recovery, nodes=2))
    request = build_request(job, LaunchOptions(), "ab", tmp_path)
    assert [(each.nodes, each.ranks_per_node) for each in request.components] == [(2, 1)]
    assert request.scheduler.accelerators_per_node == 0
    assert request.environment == {}


@pytest.mark.parametrize(("nodes", "words"), [(3, (16, 3)), (1, (16, 8))])
def test_nodes_that_do_not_fit_are_refused(tmp_path: Path, nodes: int, words: tuple[int, ...]) -> None:
    with refused(BadInput, *words):
        build_request(SIXTEEN, LaunchOptions(nodes=nodes), "ab", tmp_path)


def test_components_give_each_node_its_ranks_and_accelerators(tmp_path: Path) -> None:
    request = build_request(SIXTEEN, LaunchOptions(components=UNEQUAL), "ab", tmp_path)
    assert request.job.recovery == Recovery(nodes=3, ranks_per_node=(8, 4, 4))
    assert [each.accelerators_per_node for each in request.components] == [8, 4]
    assert [request.job.node_of(rank) for rank in range(16)] == [0] * 8 + [1] * 4 + [2] * 4
    assert build_request(request.job, LaunchOptions(), "ab", tmp_path) == request, "the job file alone says the same"
    equal = (Component(nodes=1, ranks_per_node=8),) * 2
    assert build_request(SIXTEEN, LaunchOptions(components=equal), "ab", tmp_path).job == SIXTEEN


@pytest.mark.parametrize(
    ("recovery", "options", "words"),
    [
        (Recovery(), LaunchOptions(components=(Component(nodes=1, ranks_per_node=4),)), (16, "1 node x 4 ranks = 4")),
        (Recovery(nodes=2), LaunchOptions(components=UNEQUAL), ("3 nodes", "nodes = 2")),
        (Recovery(nodes=2, ranks_per_node=(12, 4)), LaunchOptions(components=UNEQUAL), ("[8, 4, 4]", "[12, 4]")),
        (Recovery(nodes=2, ranks_per_node=(12, 4)), LaunchOptions(nodes=4), ("--nodes 4", "[12, 4]", "2 nodes")),
    ],
)
def test_components_that_contradict_the_job_are_refused(
    tmp_path: Path, recovery: Recovery, options: LaunchOptions, words: tuple[int | str, ...]
) -> None:
    with refused(BadInput, *words):
        build_request(replace(SIXTEEN, recovery=recovery), options, "ab", tmp_path)


def test_submitted_job_file_has_the_ranks_of_unequal_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[LaunchRequest] = []

    class Recorder:
        starts = "nodes"

        def render(self, request: LaunchRequest) -> dict[str, str]:
            rendered.append(request)
            return {}

        def submit(self, files: Path) -> str:
            return "1"

    monkeypatch.setattr(launch_job, "load_launcher", lambda _: Recorder())
    text = job_file.write(SIXTEEN)
    record = launch_job.submit_job(SIXTEEN, text, "slurm", LaunchOptions(components=UNEQUAL), tmp_path)
    assert job_file.load(Path(record.folder, "job.toml")) == rendered[0].job
    assert rendered[0].job.recovery.ranks_per_node == (8, 4, 4)


def test_container_gets_its_own_python_and_devices(tmp_path: Path) -> None:
    request = build_request(SIXTEEN, LaunchOptions(container=Container(image="x"), tag="first"), "ab", tmp_path)
    assert request.command[0] == "python3"
    assert request.command[-2:] == ("--tag", "first")
    assert request.container is not None
    assert request.container.vendor == "nvidia"


def record(root: Path, id: str, started: str) -> LaunchRecord:
    """A stored record of a launch."""
    folder = root / "launches" / id
    folder.mkdir(parents=True)
    stored = LaunchRecord(
        id=id, on="slurm", job="j", scheduler_id="7", started=started, nodes=2, ranks=16, folder=str(folder)
    )
    write_record(stored)
    return stored


def test_records_are_found_by_prefix_newest_first(tmp_path: Path) -> None:
    older, newer = record(tmp_path, "aa11", "2026-01-01"), record(tmp_path, "aa22", "2026-01-02")
    (tmp_path / "launches" / "damaged").mkdir()
    (tmp_path / "launches" / "damaged" / "launch-record.json").write_text("{")
    assert list_records(tmp_path) == [newer, older]
    assert find_record(tmp_path, "aa1") == older
    with refused(BadInput, "'aa'", "aa11", "aa22"):
        find_record(tmp_path, "aa")
    with refused(UnknownName, "'b'"):
        find_record(tmp_path, "b")


def test_status_is_one_line() -> None:
    status = JobStatus(state="running", nodes=tuple(f"n{n}" for n in range(100)), restarts=2)
    assert describe(status) == "running on n0, n1, n2, n3, ..., restart 2"


def test_more_ranks_than_a_host_has_are_refused(tmp_path: Path) -> None:
    job = replace(SIXTEEN, machine="gb200")
    with refused(BadInput, 16, 4, "--nodes 4"):
        build_request(job, LaunchOptions(nodes=1), "ab", tmp_path)


@pytest.mark.parametrize("name", sorted(machine.known()))
def test_hosts_of_every_machine_divide_a_node(name: str) -> None:
    known = machine.load(name)
    assert known.ranks_per_node % known.ranks_per_host == 0
    for per_host in (-1, known.per_node + 1):
        with refused(BadInput, f"{per_host:,}"):
            replace(known, per_host=per_host)


@pytest.mark.parametrize(
    ("on", "scheduler", "fabric", "network"),
    [
        ("slurm", {}, "", {"NCCL_IB_TIMEOUT"}),
        ("slurm", {}, "none", set()),
        ("k8s", {}, "", set()),
        ("k8s", {"rdma": "rdma/hca:8"}, "", {"NCCL_IB_TIMEOUT"}),
        ("k8s", {"rdma": "rdma/hca:8"}, "none", set()),
        ("k8s", {}, "ib", {"NCCL_IB_TIMEOUT", "NCCL_NET"}),
    ],
)
def test_network_variables_need_a_network(
    tmp_path: Path, on: str, scheduler: dict[str, str], fabric: Fabric, network: set[str]
) -> None:
    options = LaunchOptions(scheduler=SchedulerOptions(options=scheduler), fabric=fabric)
    request = build_request(SIXTEEN, options, "ab", tmp_path, on)
    assert request.environment.keys() == {"NCCL_DEBUG", *network}
