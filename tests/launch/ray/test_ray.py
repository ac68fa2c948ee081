"""Jobs on a real Ray cluster of two nodes on this host.

All tests that need the cluster are in this file, which one worker of pytest runs: two heads on one host disturb each
other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.launch.real_job import log_ends, losses
from tests.launch.requests import JOB, request
from tests.ports import free_port
from tests.processes import until
from tests.refused import refused
from tests.run.parts.two_hosts import LATE_SCRIPT
from trainyard.api.run_jobs import read_job
from trainyard.errors import BadInput, EnvironmentFailed, UnknownName
from trainyard.job import Checkpoint
from trainyard.launch.ray.launcher import Ray
from trainyard.launch_request import Component, Container, SchedulerOptions, Variable
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.run.launches.launch_job import LaunchOptions, submit_job
from trainyard.run.parts.part import joined_run_id
from trainyard.store.store import Store

pytestmark = pytest.mark.ray

NODE = """
import json, os, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2]))
names = ("TRAINYARD_JOB_TOKEN", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
(Path(options["--folder"]) / "options.json").write_text(
    json.dumps(options | {"python": sys.executable} | {name: os.environ.get(name, "") for name in names})
)
print("node", options["--node"], "is here", flush=True)
if words[0] == "wait":
    time.sleep(120)
sys.exit(int(words[0]) if words[0].isdecimal() else 0)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of the dashboard of a cluster of two nodes; skips the test if ray is not installed."""
    pytest.importorskip("ray.job_submission", reason="ray is not installed")
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        port, dashboard = (each.getsockname()[1] for each in sockets)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled"}
    env.pop("RAY_ADDRESS", None)
    common = ["--block", "--num-cpus=2", "--num-gpus=2", "--object-store-memory=100000000", "--disable-usage-stats"]
    head = [f"--port={port}", "--head", "--include-dashboard=true", f"--dashboard-port={dashboard}"]
    # Ray puts sockets into its folder, whose paths may have 107 bytes; pytest's folders are longer.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    head += ["--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    running: list[subprocess.Popen[bytes]] = []
    url = f"http://127.0.0.1:{dashboard}"

    def start(*words: str) -> None:
        """Start a node of the cluster in the foreground."""
        process = subprocess.Popen(
            [*ray, *words, *common],
            env=env,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        running.append(process)

    def answers() -> bool:
        """Whether the dashboard takes jobs."""
        try:
            Ray().status(f"{url}#none")
        except UnknownName:
            return True
        except EnvironmentFailed:
            return False
        return False

    try:
        start(*head)
        assert until(answers, 200)
        start(f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1")
        yield url
    finally:
        for process in running:  # SIGTERM takes half a minute, in which each process waits for another one
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a launch."""
    (tmp_path / "node.py").write_text(NODE)
    return tmp_path


def submit(
    address: str, files: Path, how: str, wait_s: str = "60", accelerators: int = 0, python: str = "", **options: Any
) -> str:
    """Submit the substitute for a node on two nodes; return the job's id."""
    further = {"address": address, "cpus": "0.5", "wait_s": wait_s}
    scheduler = SchedulerOptions(options=further, accelerators_per_node=accelerators)
    fields = {"scheduler": scheduler, "node_folder": str(files / "nodes"), **options}
    (files / "working_dir").mkdir()
    command = (python, str(files / "node.py"), how)
    rendered = Ray().render(request(files, command, **fields))
    for name, text in rendered.items():
        (files / name).write_text(text.replace("trainyard-a1b2c3d4", f"trainyard-{files.name}"))
    return Ray().submit(files)


def test_every_node_runs_in_a_bundle_of_its_own(address: str, files: Path) -> None:
    values = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "3"}
    given = {name: Variable(value=value, reason="A reason.") for name, value in values.items()}
    id = submit(address, files, "0", environment=given)
    assert until(lambda: Ray().status(id).is_over, 120)
    status = Ray().status(id)
    assert status.state == "ended", status.reason
    first, second = (json.loads((files / "nodes" / f"node{n}" / "options.json").read_text()) for n in range(2))
    assert [node["--node"] for node in (first, second)] == ["0", "1"]
    assert first["--head"] == second["--head"]
    assert re.fullmatch(r"[0-9.]+:[0-9]+", first["--head"])
    assert {name: first[name] for name in values} == values
    assert first["TRAINYARD_JOB_TOKEN"] == second["TRAINYARD_JOB_TOKEN"]
    assert len(first["TRAINYARD_JOB_TOKEN"]) == 64
    assert (files / "nodes" / "node0" / "job.toml").exists()
    printed = subprocess.run(
        status.log_command, capture_output=True, text=True, check=True, timeout=60
    )  # fmt: skip
    assert "node 1 is here" in printed.stdout


def test_nodes_see_the_accelerators_that_they_reserve(address: str, files: Path) -> None:
    # Nothing may depend on the interpreter from which the job is submitted.
    assert json.loads(Ray().render(request(files, ("", "x")))["working_dir/nodes.json"])["command"] == ["", "x"]
    id = submit(address, files, "0", accelerators=2)
    assert until(lambda: Ray().status(id).is_over, 120)
    assert Ray().status(id).state == "ended", Ray().status(id).reason
    for node in range(2):
        options = json.loads((files / "nodes" / f"node{node}" / "options.json").read_text())
        assert sorted(options["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]
        assert options["OMP_NUM_THREADS"] == "", "the ranks of a node share its cores"
        assert Path(options["python"]).parent == Path(sys.executable).parent, "the interpreter of the cluster"


def test_python_of_the_nodes_can_be_chosen(address: str, files: Path) -> None:
    id = submit(address, files, "0", python="/nowhere/python")
    assert until(lambda: Ray().status(id).is_over, 120)
    assert Ray().status(id).state == "failed"
    assert "/nowhere/python" in Ray().status(id).reason


def test_container_is_refused(files: Path) -> None:
    # Ray takes no image together with a working directory.
    with refused(BadInput, "--image"):
        Ray().render(request(files, ("python",), container=Container(image="x")))


def test_nodes_with_different_numbers_of_ranks_are_refused(files: Path) -> None:
    job = replace(JOB, layout=replace(JOB.layout, dp_replicate=3), recipe=replace(JOB.recipe, tokens_per_step=24))
    components = (Component(nodes=1, ranks_per_node=2), Component(nodes=1, ranks_per_node=1))
    with refused(BadInput, "2, 1", "Ray"):
        Ray().render(request(files, ("python",), job=job, components=components))


def test_checkpoints_need_a_shared_folder(files: Path) -> None:
    job = replace(JOB, checkpoint=Checkpoint(interval=7))
    with refused(BadInput, 7, "--shared-folder"):
        Ray().render(request(files, ("python",), job=job))
    assert Ray().render(request(files, ("python",), job=job, shared_folder="/mnt/team"))


def test_failure_of_node_0_is_that_of_the_job(address: str, files: Path) -> None:
    id = submit(address, files, "4")
    assert until(lambda: Ray().status(id).is_over, 120)
    assert Ray().status(id).state == "failed"


def test_stopped_job_asks_its_nodes_to_leave(address: str, files: Path) -> None:
    id = submit(address, files, "wait")
    assert until(lambda: len(list((files / "nodes").glob("*/options.json"))) == 2, 120)
    assert Ray().status(id).state == "running"
    Ray().cancel(id, save=True)
    assert until(lambda: Ray().status(id).is_over, 60)
    assert Ray().status(id).state in ("cancelled", "preempted")


def test_too_few_nodes_are_named(address: str, files: Path) -> None:
    job = replace(JOB, layout=Layout(dp_replicate=3), recipe=Recipe(seq_len=8, tokens_per_step=24))
    id = submit(address, files, "0", wait_s="3", job=job, components=(Component(nodes=3, ranks_per_node=1),))
    assert until(lambda: Ray().status(id).is_over, 120)
    status = Ray().status(id)
    assert status.state == "failed"
    assert "3 different nodes" in status.reason


def test_unknown_job_and_dead_address_are_refused(address: str) -> None:
    with refused(UnknownName, "trainyard-none"):
        Ray().status(f"{address}#trainyard-none")
    with refused(UnknownName, "'7'"):
        Ray().status("7")
    with refused(EnvironmentFailed, "http://127.0.0.1:9"):
        Ray().status("http://127.0.0.1:9#trainyard-none")


@pytest.mark.parametrize(
    "scheduler",
    [
        SchedulerOptions(array="0-3"),
        SchedulerOptions(partition="gpu"),
        SchedulerOptions(account="mine"),
        SchedulerOptions(qos="high"),
        SchedulerOptions(constraint="h100"),
        SchedulerOptions(time_limit_s=3600),
        SchedulerOptions(hosts=("a", "b")),
        SchedulerOptions(options={"cpus": "many"}),
        SchedulerOptions(options={"colour": "red"}),
    ],
)
def test_option_that_ray_lacks_is_refused(files: Path, scheduler: SchedulerOptions) -> None:
    with pytest.raises(BadInput):
        Ray().render(request(files, ("python",), scheduler=scheduler))


@pytest.mark.torch
@pytest.mark.slow
def test_a_real_job_has_the_losses_of_a_local_run(
    address: str, store: Store, job: Path, local_losses: Mapping[tuple[int, int], float | None]
) -> None:
    options = LaunchOptions(
        nodes=2, scheduler=SchedulerOptions(options={"address": address, "cpus": "0.5", "wait_s": "60"}),
        node_folder=str(store.root / "nodes"), shared_folder=str(store.root / "shared"),
        environment={"TRAINYARD_STORE": str(store.root)},
    )  # fmt: skip
    record = submit_job(*read_job(job), "ray", options, store.root)
    until(lambda: Ray().status(record.scheduler_id).is_over, 270)
    status = Ray().status(record.scheduler_id)
    assert status.state == "ended", (status, log_ends(store.root))
    assert losses(store.load(joined_run_id(record.id))) == local_losses


TASKS = """
import os, subprocess, sys
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

folder, port = sys.argv[1:]
ray.init(address="auto", log_to_driver=True)
group = placement_group([{"CPU": 0.5}] * 2, strategy="STRICT_SPREAD")
ray.get(group.ready(), timeout=60)


@ray.remote(num_cpus=0.5, max_retries=0)
def run(node):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    launcher += ["--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", port]
    variables = {"TRAINYARD_STORE": f"{folder}/{node}", "TRAINYARD_NODE": f"node{node}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainyard.cli.main", "run", "--json", "--", *launcher, f"{folder}/train.py", "-1"]
    with open(f"{folder}/node{node}.json", "w") as output:
        code = subprocess.run(command, stdout=output, env={**os.environ, **variables}).returncode
    return code, ray.get_runtime_context().get_node_id()


placed = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node) for node in range(2)]
ended = ray.get([run.options(scheduling_strategy=placed[node]).remote(node) for node in range(2)])
print(ended)
sys.exit(0 if [code for code, _ in ended] == [0, 0] and len({id for _, id in ended}) == 2 else 1)
"""
"""Driver of a Ray job: one task on each of two nodes runs torchrun under `trainyard run`. Arguments: folder, port."""


@pytest.mark.torch
@pytest.mark.slow
def test_a_command_in_tasks_on_two_nodes_gives_one_run(address: str, tmp_path: Path) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    (tmp_path / "train.py").write_text(LATE_SCRIPT)
    (tmp_path / "driver.py").write_text(TASKS)
    client = JobSubmissionClient(address)
    id = client.submit_job(entrypoint=f"{sys.executable} {tmp_path}/driver.py {tmp_path} {free_port()}")
    assert until(lambda: client.get_job_status(id).is_terminal(), 240), client.get_job_logs(id)
    assert client.get_job_status(id) == JobStatus.SUCCEEDED, client.get_job_logs(id)
    joined, part = (json.loads((tmp_path / f"node{node}.json").read_text()) for node in range(2))
    assert joined["id"] == joined_run_id(joined["job_id"])
    assert part["job_id"] == joined["job_id"]
    shares = [(share["node"], share["ranks"]) for share in joined["nodes"]]
    assert shares == [("node0", [0, 1]), ("node1", [2, 3])]
    late = joined["ledgers"][-1]["late"]
    assert max(late, key=late.get) == "3"
    costs = {finding["rule"]: finding["cost_ns"] for finding in joined["findings"]}
    assert costs["straggler"] > 20e6  # of 60 ms, also on a loaded machine
