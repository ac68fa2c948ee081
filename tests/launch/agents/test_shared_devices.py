"""Agents of a single host divide its devices; agents that see other devices do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.refused import refused
from trainyard.errors import DeviceUnusable
from trainyard.launch.agents.shared_devices import device_host, device_share
from trainyard.launch.launch_spec import FILE, Spec
from trainyard.launch.supervisor.messages import Member


def members(*hosts: str) -> list[Member]:
    return [Member(node=node, life=f"{node}a", device_host=host) for node, host in enumerate(hosts)]


def test_no_two_ranks_of_a_host_get_the_same_device() -> None:
    agents = members("a", "b", "a", "b", "a")
    devices = []
    for agent in agents:
        share = device_share(agents, agent, lambda _: 2)
        assert share.ranks == (6 if agent.device_host == "a" else 4)
        devices += [(agent.device_host, share.first + rank) for rank in range(2)]
    assert sorted(devices) == [("a", device) for device in range(6)] + [("b", device) for device in range(4)]


def test_agents_of_unknown_hosts_share_nothing() -> None:
    agents = members("", "")
    assert [tuple(device_share(agents, agent, lambda _: 3)) for agent in agents] == [(0, 3), (0, 3)]


def test_agents_with_different_numbers_of_ranks_divide_a_host() -> None:
    agents, ranks = members("a", "b", "a", "a"), (4, 2, 1, 3)
    assert [tuple(device_share(agents, agent, ranks.__getitem__)) for agent in agents] == [
        (0, 8), (0, 2), (4, 8), (5, 8),
    ]  # fmt: skip


def test_agents_with_other_visible_devices_are_another_device_host() -> None:
    both = device_host({"CUDA_VISIBLE_DEVICES": "0,1"})
    assert both == device_host({"CUDA_VISIBLE_DEVICES": "0,1", "OTHER": "1"})
    assert len({both, device_host({}), device_host({"CUDA_VISIBLE_DEVICES": "2,3"})}) == 3


WORKER = """
import os, sys
from pathlib import Path
from trainyard.errors import DeviceUnusable
from trainyard.train import process_group
process_group.torch.cuda.device_count = lambda: int(sys.argv[2])
try:
    text = str(process_group.find_ranks("nvidia").device.index)
except DeviceUnusable as error:
    text = str(error)
(Path(sys.argv[1]) / f"device{os.environ['RANK']}").write_text(text)
"""


def devices_of_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch, device_count: int) -> list[str]:
    """What each of 4 ranks of 2 agents on this host gets from `find_ranks`: its device's index, or an error."""
    (folder / "device_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    spec = Spec(module="device_worker", args=(str(folder), str(device_count)), ranks=4, nodes=2, port=0)
    (folder / FILE).write_bytes(msgspec.json.encode(spec))
    command = [sys.executable, "-P", "-m", "trainyard.launch.supervisor.supervisor_main", str(folder / FILE)]
    ended = subprocess.run([*command, str(os.getpid())], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return [(folder / f"device{rank}").read_text() for rank in range(4)]


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_of_two_agents_on_a_host_get_different_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    assert devices_of_ranks(tmp_path, monkeypatch, device_count=4) == ["0", "1", "2", "3"]


@pytest.mark.torch
@pytest.mark.slow
def test_too_few_devices_for_agents_of_a_host_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for error in devices_of_ranks(tmp_path, monkeypatch, device_count=2):
        assert "4 ranks" in error
        assert "torch sees 2" in error
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    from trainyard.train import process_group

    monkeypatch.setattr(process_group.torch.cuda, "device_count", lambda: 2)
    with refused(DeviceUnusable, "4 ranks", 2):
        process_group.find_ranks("nvidia")
