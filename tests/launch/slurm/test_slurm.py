"""Jobs on a real Slurm cluster: submit, status, logs, notice, requeue, cancel, and what it refuses."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests import slurm_cluster
from tests.launch.requests import JOB, request
from tests.processes import until
from tests.refused import refused
from tests.slurm_cluster import Cluster
from trainyard.errors import MissingProgram, SchedulerFailed, UnknownName
from trainyard.launch.node_logs import node_logs
from trainyard.launch.slurm.job_state import parse_jobs, status_of
from trainyard.launch.slurm.launcher import Slurm
from trainyard.launch_request import Component, Container, JobStatus, SchedulerOptions, Variable

pytestmark = pytest.mark.slurm

NODE = """
import json, os, resource, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2]))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
folder = Path(options["--folder"])
folder.mkdir(parents=True, exist_ok=True)
names = ("TRAINYARD_JOB_TOKEN", "NCCL_DEBUG", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")
names += ("SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "TRAINYARD_STORE")
options["open files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
(folder / "options.json").write_text(json.dumps(options | {name: os.environ.get(name, "") for name in names}))
print("node", options["--node"], "is here", flush=True)
if words[0] == "wait" and not os.environ.get("SLURM_RESTART_COUNT"):
    time.sleep(120)
if words[0].startswith("head"):
    if options["--node"] == "1" or os.environ.get("SLURM_RESTART_COUNT"):
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "exit-code").write_text(words[0].removeprefix("head"))
    sys.exit(int(words[0].removeprefix("head")))
sys.exit(int(words[0]) if words[0].isdecimal() else 0)
"""
"""A substitute for a node of a job: writes its options to its folder, leaves with 75 on SIGTERM, and does what its
first argument means: an exit code, `wait`, which waits in the first attempt, or `head` with the exit code of node 0 in
the first attempt, in which node 1 is killed; later all are."""

APPTAINER = """#!/bin/sh
shift
while [ "$1" = --bind ]; do
  [ -e "${2%%:*}" ] || { echo "no folder ${2%%:*}"; exit 9; }
  shift 2
done
[ "$1" = docker://repo/x:1 ] || { echo "no image $1"; exit 9; }
shift
exec "$@"
"""

ON_ONE_NODE = (Component(nodes=1, ranks_per_node=2),)


def submit(files: Path, how: str, **options: Any) -> str:
    """Submit the substitute on two nodes; return the job's id."""
    (files / "node.py").write_text(NODE)
    for name, text in Slurm().render(request(files, (sys.executable, str(files / "node.py"), how), **options)).items():
        (files / name).write_text(text)
    return Slurm().submit(files)


def nodes(files: Path) -> list[dict[str, str]]:
    """The options of each node that has started, by index."""
    return [json.loads(path.read_text()) for path in sorted((files / "nodes").glob("**/options.json"))]


def json_of(files: Path, element: int) -> dict[str, str]:
    """The options of the only node of an array's element."""
    return json.loads((files / "nodes" / str(element) / "node0" / "options.json").read_text())


def job_of(cluster: Cluster, id: str) -> JobStatus:
    """The status of an element of an array, or of a job."""
    return status_of(parse_jobs(cluster.run("scontrol", "show", "job", id, "--oneliner")))


def ended(id: str) -> bool:
    return Slurm().status(id).is_over


def test_every_node_gets_its_options(cluster: Cluster, files: Path) -> None:
    reason = Variable(value="INFO", reason="NCCL prints its choice of network.")
    id = submit(files, "0", environment={"NCCL_DEBUG": reason})
    assert until(lambda: ended(id), 60)
    status = Slurm().status(id)
    assert (status.state, status.nodes, status.restarts) == ("ended", ("n1", "n2"), 0)
    port = 20000 + int(id) % 10000
    first, second = nodes(files)
    assert [node["--node"] for node in (first, second)] == ["0", "1"]
    assert {node["--head"] for node in (first, second)} == {f"127.0.0.1:{port}"}
    assert {node["--nodes"] for node in (first, second)} == {"2"}
    assert {node["--job-id"] for node in (first, second)} == {"a1b2c3d4"}
    assert first["--shared"] == str(files / "shared")
    assert first["NCCL_DEBUG"] == "INFO"
    assert len(first["TRAINYARD_JOB_TOKEN"]) == 64
    assert first["TRAINYARD_JOB_TOKEN"] == second["TRAINYARD_JOB_TOKEN"]
    assert (files / "logs" / "node1.log").read_text() == "node 1 is here\n"
    assert sorted(Path(path).name for path in status.logs) == ["node0.log", "node1.log", f"slurm-{id}.log"]
    token = first["TRAINYARD_JOB_TOKEN"]
    texts = [path.read_text() for path in [files / "job.sbatch", *(files / "logs").iterdir()]]
    assert not any(token in text for text in texts)


def test_a_variable_of_the_user_wins(cluster: Cluster, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    id = submit(files, "0", environment={"NCCL_DEBUG": Variable(value="INFO", reason="NCCL prints its choices.")})
    assert until(lambda: ended(id), 60)
    assert [node["NCCL_DEBUG"] for node in nodes(files)] == ["WARN", "WARN"]


def test_token_is_passed_if_exports_are_off(cluster: Cluster, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    id = submit(files, "0")
    assert until(lambda: ended(id), 60)
    assert [len(node["TRAINYARD_JOB_TOKEN"]) for node in nodes(files)] == [64, 64]


def test_limits_of_the_submitting_host_are_left_behind(cluster: Cluster, files: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 300
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        id = submit(files, "0")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert until(lambda: ended(id), 60)
    assert [int(node["open files"]) > 300 for node in nodes(files)] == [True, True]


def test_failed_job_names_its_exit_code(cluster: Cluster, files: Path) -> None:
    id = submit(files, "4")
    assert until(lambda: ended(id), 60)
    status = Slurm().status(id)
    assert status.state == "failed"
    assert "4:0" in status.reason


def test_killed_node_does_not_hide_a_head_that_succeeded(cluster: Cluster, files: Path) -> None:
    id = submit(files, "head0")
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "ended"


def test_killed_node_does_not_hide_a_head_that_left(cluster: Cluster, files: Path) -> None:
    id = submit(files, "head75")
    assert until(lambda: len(nodes(files)) == 2, 60)
    assert until(lambda: Slurm().status(id).state == "pending", 60)
    cluster.run("scontrol", "update", f"JobId={id}", "StartTime=now+3")
    assert until(lambda: ended(id), 60)
    assert (Slurm().status(id).state, Slurm().status(id).restarts) == ("failed", 1)  # a killed head leaves no code


def test_cancelled_job_ends_without_requeue(cluster: Cluster, files: Path) -> None:
    id = submit(files, "wait")
    assert until(lambda: len(nodes(files)) == 2, 60)
    assert Slurm().status(id).state == "running"
    Slurm().cancel(id)
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "cancelled"
    Slurm().cancel(id)  # has ended: no effect


def test_job_asked_to_save_is_preempted_and_not_requeued(cluster: Cluster, files: Path) -> None:
    id = submit(files, "wait")
    assert until(lambda: len(nodes(files)) == 2, 60)
    Slurm().cancel(id, save=True)
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "preempted"
    assert Slurm().status(id).restarts == 0


def test_job_that_leaves_on_notice_is_requeued(cluster: Cluster, files: Path) -> None:
    id = submit(files, "wait")
    assert until(lambda: len(nodes(files)) == 2, 60)
    cluster.run("scancel", "--signal=TERM", id)  # the notice that --signal sends before the time limit
    assert until(lambda: Slurm().status(id).state == "pending", 60)
    assert "requeued" in Slurm().status(id).reason
    # Slurm waits two minutes; a node refuses a job that it killed in the same second.
    cluster.run("scontrol", "update", f"JobId={id}", "StartTime=now+3")
    assert until(lambda: ended(id), 60)
    status = Slurm().status(id)
    assert (status.state, status.restarts) == ("ended", 1)
    assert [node["SLURM_RESTART_COUNT"] for node in nodes(files)] == ["1", "1"]
    assert (files / "logs" / "node0.log").read_text().count("node 0 is here") == 2


@pytest.mark.slow
def test_job_of_a_killed_node_is_requeued(
    tmp_path_factory: pytest.TempPathFactory, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := slurm_cluster.missing():
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm"), nodes=3) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
        id = submit(files, "wait")
        assert until(lambda: len(nodes(files)) == 2, 60)
        lost = Slurm().status(id).nodes[1]
        cluster.nodes[lost].kill()
        assert until(lambda: Slurm().status(id).state == "pending", 120)
        cluster.run("scontrol", "update", f"JobId={id}", "StartTime=now+3")
        assert until(lambda: ended(id), 60)
        status = Slurm().status(id)
        assert (status.state, status.restarts) == ("ended", 1)
        assert lost not in status.nodes
        assert [node["SLURM_RESTART_COUNT"] for node in nodes(files)] == ["1", "1"]


def test_array_elements_have_their_own_ids_folders_and_logs(cluster: Cluster, files: Path) -> None:
    options = SchedulerOptions(array="0-1", exclusive=False, time_limit_s=60, notice_s=10)
    id = submit(files, "0", scheduler=options, components=ON_ONE_NODE)
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "ended"
    assert [node["--job-id"] for node in nodes(files)] == ["a1b2c3d4-0", "a1b2c3d4-1"]
    assert [path.name for path in node_logs(files / "logs", 0)] == ["node0-0.log", "node0-1.log"]
    assert [path.read_text() for path in node_logs(files / "logs", 0)] == ["node 0 is here\n"] * 2


def test_element_that_leaves_is_requeued_without_the_others(cluster: Cluster, files: Path) -> None:
    options = SchedulerOptions(array="0-1", exclusive=False)
    id = submit(files, "wait", scheduler=options, components=ON_ONE_NODE)
    assert until(lambda: len(nodes(files)) == 2, 60)
    # The last element has the id of the whole array, by which Slurm would requeue all elements.
    assert json_of(files, 1)["SLURM_JOB_ID"] == id
    cluster.run("scancel", "--signal=TERM", f"{id}_1")
    assert until(lambda: job_of(cluster, f"{id}_1").state == "pending", 60)
    assert job_of(cluster, f"{id}_0").state == "running"
    cluster.run("scontrol", "update", f"JobId={id}_1", "StartTime=now+3")
    assert until(lambda: job_of(cluster, f"{id}_1").state == "ended", 60)
    assert [job_of(cluster, f"{id}_{element}").restarts for element in (0, 1)] == [0, 1]
    Slurm().cancel(id)
    assert until(lambda: ended(id), 60)


def test_shared_nodes_have_a_core_for_each_rank(cluster: Cluster, files: Path) -> None:
    id = submit(files, "0", scheduler=SchedulerOptions(exclusive=False), components=ON_ONE_NODE)
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "ended"
    assert [node["SLURM_CPUS_ON_NODE"] for node in nodes(files)] == ["2"]
    assert {"CPUs/Task=2", "OverSubscribe=OK"} <= set(cluster.run("scontrol", "show", "job", id).split())


def test_further_options_reach_sbatch(cluster: Cluster, files: Path) -> None:
    options = {"comment": "two words", "mem": "100", "nice": "7", "spread-job": ""}
    id = submit(files, "0", scheduler=SchedulerOptions(options=options))
    assert until(lambda: ended(id), 60)
    (job,) = parse_jobs(cluster.run("scontrol", "show", "job", id, "--oneliner"))
    assert (job.fields["Comment"].strip(), job.fields["Nice"], job.fields["MinMemoryNode"]) == (
        "two words",
        "7",
        "100M",
    )


def test_node_folders_of_a_container_are_created(
    cluster: Cluster, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A substitute for apptainer starts the command only if all folders that it binds exist, as apptainer does."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "apptainer").write_text(APPTAINER)
    (tools / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    container = Container(image="repo/x:1", runtime="apptainer")
    node_folder, store = tmp_path / "local" / "x", str(files.parent)
    id = submit(files, "0", container=container, node_folder=str(node_folder), store=store)
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "ended", (files / "logs" / "node0.log").read_text()
    options = [json.loads(path.read_text()) for path in sorted(node_folder.glob("*/options.json"))]
    assert [(each["--node"], each["TRAINYARD_STORE"]) for each in options] == [("0", store), ("1", store)]


def test_components_of_different_nodes_are_one_job(cluster: Cluster, files: Path) -> None:
    kinds = tuple(Component(nodes=1, ranks_per_node=1, constraint=feature) for feature in ("slow", "fast"))
    id = submit(files, "0", components=kinds, scheduler=SchedulerOptions(time_limit_s=60, notice_s=10))
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "ended"
    assert [node["SLURMD_NODENAME"] for node in nodes(files)] == ["n2", "n1"]
    assert [node["--node"] for node in nodes(files)] == ["0", "1"]
    assert [node["--nodes"] for node in nodes(files)] == ["2", "2"]


def test_components_with_different_ranks_have_a_core_for_each(cluster: Cluster, files: Path) -> None:
    kinds = (
        Component(nodes=1, ranks_per_node=1, constraint="slow"),
        Component(nodes=1, ranks_per_node=2, constraint="fast"),
    )
    job = replace(JOB, layout=replace(JOB.layout, dp_replicate=3), recipe=replace(JOB.recipe, tokens_per_step=24))
    id = submit(files, "0", job=job, components=kinds, scheduler=SchedulerOptions(exclusive=False))
    assert until(lambda: ended(id), 60)
    assert Slurm().status(id).state == "ended"
    assert [(node["SLURMD_NODENAME"], node["SLURM_CPUS_ON_NODE"]) for node in nodes(files)] == [
        ("n2", "1"),
        ("n1", "2"),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nowhere"}, ("partition", "sinfo")),
        ({"constraint": "unheard_of"}, ("feature", "--constraint")),
        ({"accelerators_per_node": 8}, ("generic resource", "--accelerators")),
        ({"options": {"unheard-of": "1"}}, ("unheard-of", "sbatch --help")),
    ],
)
def test_refused_submission_has_next_step(
    cluster: Cluster, files: Path, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    with refused(SchedulerFailed, *words):
        submit(files, "0", scheduler=SchedulerOptions(**options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "small"}, ("small", "2 nodes")),
        ({"partition": "short", "time_limit_s": 3600}, ("short", "01:00:00")),
    ],
)
def test_job_that_cannot_start_says_why(
    cluster: Cluster, files: Path, options: dict[str, Any], words: tuple[str, ...]
) -> None:
    id = submit(files, "0", scheduler=SchedulerOptions(**options))
    assert until(lambda: bool(Slurm().status(id).reason), 30)
    status = Slurm().status(id)
    Slurm().cancel(id)
    assert status.state == "pending"
    assert [word for word in words if word not in status.reason] == []
    assert status.next_step


def test_drained_node_is_the_reason_to_wait(cluster: Cluster, files: Path) -> None:
    cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=fan")
    try:
        id = submit(files, "0")
        assert until(lambda: "drained" in Slurm().status(id).reason, 30)
        assert "sinfo" in Slurm().status(id).next_step
        Slurm().cancel(id)
    finally:
        cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")


def test_unknown_job_is_refused(cluster: Cluster) -> None:
    with refused(UnknownName, "999999"):
        Slurm().status("999999")
    with refused(UnknownName, "--all"):
        Slurm().status("--all")


def test_no_munge_has_next_step(cluster: Cluster, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = cluster.configuration.read_text().replace("/munge/socket", "/munge/absent")
    (tmp_path / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with refused(SchedulerFailed, "munge", "Start munged"):
        submit(files, "0")


def test_no_slurm_has_next_step(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(files))
    with refused(MissingProgram, "sbatch", "login node"):
        submit(files, "0")
