"""Hosts whose devices cannot run a job refuse it before ranks start: of a probe, and of a job on several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refused import refused
from tests.tiny_job import ONE_LAYER
from trainyard.errors import BadInput, BadJob, DeviceUnusable
from trainyard.launch.launch_spec import Spec
from trainyard.launch.supervisor.messages import JobStart
from trainyard.record import DeviceSeen
from trainyard.run.local import usable_devices
from trainyard.run.nodes import member
from trainyard.run.nodes.hosts import Hosts
from trainyard.run.probe import devices as probe_devices
from trainyard.train.rules.torch_build_rules import TorchBuild

JOB = f"""{ONE_LAYER}[layout]
dp_replicate = 4
[recipe]
seq_len = 8
tokens_per_step = 32
dtype = "bfloat16"
"""
T4 = DeviceSeen(index=0, name="Tesla T4", vendor="nvidia", facts={"compute_capability": "7.5"})
SLICES = [
    DeviceSeen(index=index, name="NVIDIA H200 MIG 1g.18gb", vendor="nvidia", memory_bytes=2**34, facts={"mig": "slice"})
    for index in range(3)
]


@pytest.fixture(autouse=True)
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch built for CUDA, whatever is installed."""
    monkeypatch.setattr(usable_devices, "installed_build", lambda: TorchBuild("2.13.0+cu126", "12.6", ""))


def prepare(folder: Path) -> None:
    """Prepares this host as node 1 of a job of 4 ranks on 2 hosts."""
    hosts = Hosts(job_id="j", nodes=2, host="127.0.0.1", port=1, token="t")  # noqa: S106
    spec = Spec(ranks=4, nodes=2, port=1, module="worker")
    member._prepare(hosts, 1, folder, JobStart(spec=spec, run="r", files={"job.toml": JOB}), "127.0.0.1")


@pytest.mark.parametrize(
    ("devices", "error", "values"),
    [
        ([T4, T4], BadJob, ("'bfloat16'", "$.recipe", "7.5", "8.0")),
        (SLICES, DeviceUnusable, ("2 ranks", "3 MIG slices", "16.0 GiB")),
    ],
)
def test_node_of_a_job_checks_its_own_devices(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: list[DeviceSeen],
    error: type[Exception],
    values: tuple[str, ...],
) -> None:
    monkeypatch.setattr(member, "find_devices", lambda vendors: tuple(devices))
    with refused(error, *values):
        prepare(tmp_path)


def test_probe_refuses_devices_formats_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_devices, "find_spec", lambda name: name)  # torch, whether it is installed or not
    monkeypatch.setattr(probe_devices, "find_devices", lambda vendors: (T4,))
    with refused(BadInput, "'bfloat16'", "--dtype", "7.5"):
        probe_devices.devices(None, "bfloat16")
    assert probe_devices.devices(None, "float16") == (T4, 1, ())
    monkeypatch.setattr(probe_devices, "find_devices", lambda vendors: tuple(SLICES))
    with refused(DeviceUnusable, "2 ranks", "3 MIG slices"):
        probe_devices.devices(2, "float16")
    assert probe_devices.devices(None, "float16")[1] == 1
    monkeypatch.setattr(usable_devices, "installed_build", lambda: TorchBuild("2.13.0+rocm7.0", "", "7.0"))
    with refused(DeviceUnusable, "ROCm 7.0", "nvidia"):
        probe_devices.devices(1, "float32")
