"""Jobs on hosts that a real sshd on the loopback addresses stands for."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.launch.requests import JOB, request
from tests.launch.ssh.conftest import Sshd
from tests.processes import alive, until
from tests.refused import refused
from trainyard.errors import BadInput, HostFailed, UnknownName
from trainyard.job import Checkpoint
from trainyard.launch.ssh.launcher import Ssh
from trainyard.launch_request import Component, SchedulerOptions, Variable

NODE = """
import json, os, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
options = dict(zip(words[1::2], words[2::2]))
names = ("TRAINYARD_JOB_TOKEN", "NCCL_DEBUG")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
Path("options.json").write_text(json.dumps(options | {name: os.environ.get(name, "") for name in names}))
print("node", options["--node"], "is here", flush=True)
if words[0] == "wait":
    time.sleep(120)
sys.exit(int(words[0]) if words[0].isdecimal() else 0)
"""
pytestmark = pytest.mark.ssh


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a launch, with a space in its name."""
    folder = tmp_path / "a launch"
    folder.mkdir()
    (folder / "node.py").write_text(NODE)
    return folder


def submit(sshd: Sshd, files: Path, how: str, config: str = "config", **options: Any) -> str:
    """Submit the substitute for a node on two hosts; return the job's id."""
    scheduler = SchedulerOptions(
        hosts=options.pop("hosts", ("first", "second")), options={"config": str(sshd.folder / config)}
    )
    command = (options.pop("python", sys.executable), str(files / "node.py"), how)
    fields = {"scheduler": scheduler, "node_folder": str(files / "remote nodes"), **options}
    for name, text in Ssh().render(request(files, command, **fields)).items():
        (files / name).write_text(text)
    return Ssh().submit(files)


def nodes(files: Path) -> list[dict[str, str]]:
    """The options of each node that has started, by index."""
    return [json.loads(path.read_text()) for path in sorted((files / "remote nodes").glob("*/options.json"))]


def ended(files: Path) -> bool:
    """Whether the processes of both nodes have ended; their files are read here, since a connection takes a second."""
    return len(list((files / "remote nodes").glob("*/code"))) == 2


def test_every_host_gets_its_options(sshd: Sshd, files: Path) -> None:
    id = submit(sshd, files, "0", environment={"NCCL_DEBUG": Variable(value="IN FO", reason="A reason.")})
    assert until(lambda: ended(files), 30)
    status = Ssh().status(id)
    assert (status.state, status.nodes) == ("ended", ("first", "second"))
    first, second = nodes(files)
    assert [node["--node"] for node in (first, second)] == ["0", "1"]
    assert first["--folder"].endswith("remote nodes/node0")
    assert first["--head"] == second["--head"]
    assert first["--head"].startswith("first:2")
    assert first["NCCL_DEBUG"] == "IN FO"
    assert len(first["TRAINYARD_JOB_TOKEN"]) == 64
    assert first["TRAINYARD_JOB_TOKEN"] == second["TRAINYARD_JOB_TOKEN"]
    assert (files / "logs" / "node1.log").read_text() == "node 1 is here\n"
    assert not any(first["TRAINYARD_JOB_TOKEN"] in path.read_text() for path in files.glob("*.*"))


def test_failure_of_the_head_is_that_of_the_job(sshd: Sshd, files: Path) -> None:
    id = submit(sshd, files, "4")
    assert until(lambda: ended(files), 30)
    status = Ssh().status(id)
    assert status.state == "failed"
    assert "exit code 4" in status.reason


@pytest.mark.parametrize(("save", "state"), [(True, "preempted"), (False, "cancelled")])
def test_cancel_ends_every_process(sshd: Sshd, files: Path, save: bool, state: str) -> None:
    id = submit(sshd, files, "wait")
    assert until(lambda: len(nodes(files)) == 2, 30)
    pids = [int(path.read_text()) for path in (files / "remote nodes").glob("*/pid")]
    assert Ssh().status(id).state == "running"
    Ssh().cancel(id, save=save)
    assert until(lambda: not any(map(alive, pids)), 30)
    assert Ssh().status(id).state == state


def test_dead_host_fails_and_ends_the_others(sshd: Sshd, files: Path) -> None:
    with refused(HostFailed, "dead", "sshd"):
        submit(sshd, files, "wait", hosts=("first", "dead"))
    pids = [int(path.read_text()) for path in (files / "remote nodes").glob("*/pid")]
    assert until(lambda: not any(map(alive, pids)), 10)


@pytest.mark.parametrize(
    ("config", "python", "words"),
    [
        ("changed_config", sys.executable, ("first", "ssh-keygen -R first")),
        ("unknown_config", sys.executable, ("first", "ssh first")),
        ("config", "/nowhere/python", ("first", "--python")),
        ("config", "/bin/false", ("first", "trainyard")),
    ],
)
def test_host_that_cannot_run_the_job_is_named(
    sshd: Sshd, files: Path, config: str, python: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(HostFailed) as caught:
        submit(sshd, files, "0", config=config, python=python)
    assert [word for word in words if word not in str(caught.value)] == []


def test_unwritable_node_folder_is_named(sshd: Sshd, files: Path) -> None:
    (files / "a file").write_text("")
    with refused(HostFailed, "first", "--node-folder"):
        submit(sshd, files, "0", node_folder=str(files / "a file"))


def test_unreachable_host_leaves_the_state_unknown(sshd: Sshd, files: Path) -> None:
    id = submit(sshd, files, "wait")
    hosts = json.loads((files / "hosts.json").read_text())
    (files / "hosts.json").write_text(json.dumps(hosts | {"config": str(sshd.folder / "changed_config")}))
    status = Ssh().status(id)
    (files / "hosts.json").write_text(json.dumps(hosts))
    Ssh().cancel(id)
    assert status.state == "running"
    assert "first" in status.reason
    assert status.next_step


@pytest.mark.parametrize(
    "scheduler",
    [
        SchedulerOptions(),
        SchedulerOptions(hosts=("first",)),
        SchedulerOptions(hosts=("first", "first")),
        SchedulerOptions(hosts=("first", "-oProxyCommand=id")),
        SchedulerOptions(hosts=("first", "second"), array="0-3"),
        SchedulerOptions(hosts=("first", "second"), partition="gpu"),
        SchedulerOptions(hosts=("first", "second"), time_limit_s=3600),
        SchedulerOptions(hosts=("first", "second"), options={"colour": "red"}),
    ],
)
def test_impossible_request_is_refused(files: Path, scheduler: SchedulerOptions) -> None:
    with pytest.raises(BadInput):
        Ssh().render(request(files, ("python",), scheduler=scheduler))


def test_checkpoints_need_a_shared_folder(files: Path) -> None:
    fields = {"job": replace(JOB, checkpoint=Checkpoint(interval=7)), "scheduler": SchedulerOptions(hosts=("a", "b"))}
    with refused(BadInput, 7, "--shared-folder"):
        Ssh().render(request(files, ("python",), **fields))
    assert Ssh().render(request(files, ("python",), shared_folder="/mnt/team", **fields))


def test_values_are_quoted_in_the_script(files: Path) -> None:
    hostile = 'a\'; touch /tmp/hostile; echo "$(id)" `id` $HOME'
    scheduler = SchedulerOptions(hosts=("first",))
    fields = {"components": (Component(nodes=1, ranks_per_node=2),), "scheduler": scheduler}
    script = Ssh().render(request(files, ("python", hostile), node_folder=f"/{hostile}", **fields))["node.sh"]
    words = [word for line in script.replace("\\\n", " ").splitlines() if "nohup" in line for word in shlex.split(line)]
    assert hostile in words


def test_unknown_job_is_refused(tmp_path: Path) -> None:
    with refused(UnknownName, tmp_path):
        Ssh().status(str(tmp_path))
