"""MIG slices, compute modes and drivers that fail, from simulated NVML and from output of nvidia-smi."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.refused import missing_values
from tests.vendors.test_vendors import bare, nvml, tool
from trainyard import plugins
from trainyard.record import DeviceSeen
from trainyard.run.local.host_devices import driver_warnings, find_devices
from trainyard.vendors.nvidia import Nvidia

__all__ = ["bare"]  # a fixture that hides the host's drivers in these tests too

QUERY = """
if "memory.total" in sys.argv[1]:
    print("0, NVIDIA H200, 143771 MiB, GPU-11aa, 570.1, 00000000:01:00.0, 9.0, 700.00 W, {mode}, {mig}")
    print("1, NVIDIA H200, 143771 MiB, GPU-22bb, 570.1, 00000000:02:00.0, 9.0, 700.00 W, Default, Disabled")
elif sys.argv[1] == "-L":
    print("GPU 0: NVIDIA H200 (UUID: GPU-11aa)")
    print("  MIG 1g.18gb     Device  0: (UUID: MIG-aaaa-1)")
    print("  MIG 3g.71gb     Device  1: (UUID: MIG-bbbb-2)")
    print("GPU 1: NVIDIA H200 (UUID: GPU-22bb)")
"""


def test_slices_of_nvidia_smi_take_the_place_of_all_gpus(bare: Path) -> None:
    tool(bare, "nvidia-smi", QUERY.format(mode="Default", mig="Enabled"))
    devices = Nvidia().devices()
    assert [(d.index, d.name, d.memory_bytes, d.facts["uuid"], d.facts["mig"]) for d in devices] == [
        (0, "NVIDIA H200 MIG 1g.18gb", 18 * 10**9, "MIG-aaaa-1", "slice"),
        (1, "NVIDIA H200 MIG 3g.71gb", 71 * 10**9, "MIG-bbbb-2", "slice"),
    ]
    assert {d.facts["compute_capability"] for d in devices} == {"9.0"}
    assert Nvidia().peaks(devices[0]) == {}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("MIG-bbbb", ["NVIDIA H200 MIG 3g.71gb"]),
        ("0", ["NVIDIA H200 MIG 1g.18gb"]),
        ("1", ["NVIDIA H200"]),
        ("MIG-GPU-11aa/1/0", ["NVIDIA H200 MIG"]),
    ],
)
def test_visibility_variable_selects_slices(
    bare: Path, monkeypatch: pytest.MonkeyPatch, value: str, names: list[str]
) -> None:
    tool(bare, "nvidia-smi", QUERY.format(mode="Default", mig="Enabled"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    devices = Nvidia().devices()
    assert [device.name for device in devices] == names
    assert (devices[0].facts["mig"] == "slice") == ("MIG" in names[0])


@pytest.mark.parametrize(
    ("printed", "mode"),
    [("Default", None), ("Exclusive_Process", "exclusive_process"), ("Prohibited", "prohibited"), ("[N/A]", None)],
)
def test_compute_mode_of_nvidia_smi_is_a_fact_unless_it_is_the_default(
    bare: Path, printed: str, mode: str | None
) -> None:
    tool(bare, "nvidia-smi", QUERY.format(mode=printed, mig="Disabled"))
    first, second = Nvidia().devices()
    assert (first.facts.get("compute_mode"), second.facts.get("compute_mode")) == (mode, None)
    assert first.facts["mig"] == "off"


def test_driver_that_fails_is_warned_about_if_the_cpu_is_used(bare: Path) -> None:
    vendors = plugins.load_all("vendors")
    assert driver_warnings(find_devices(vendors), vendors) == ()
    tool(bare, "nvidia-smi", "print('Failed to initialize NVML: Driver/library version mismatch'); sys.exit(18)")
    devices = find_devices(vendors)
    assert devices[0].vendor == "cpu"
    (warning,) = driver_warnings(devices, vendors)
    assert missing_values(warning, "nvidia", "18", "version mismatch") == []
    gpu = DeviceSeen(index=0, name="AMD Instinct MI300X", vendor="amd")
    assert driver_warnings([gpu], vendors) == ()


class Nvml:
    """Adds to a simulated NVML a GPU in MIG mode whose slices have the given memory in bytes, by number."""

    def __init__(self, library: Any, memory_bytes: dict[int, int]) -> None:
        gpu = library.nvmlDeviceGetHandleByIndex(0)

        def slice_handle(_: object, number: int) -> str:
            if number not in memory_bytes:
                raise library.NVMLError("not found")
            return f"slice {number}"

        def memory(handle: object) -> SimpleNamespace:
            total = 85899345920 if handle == gpu else memory_bytes[int(str(handle).split()[1])]
            return SimpleNamespace(total=total)

        library.nvmlDeviceGetMigMode = lambda _: (1, 1)
        library.nvmlDeviceGetMaxMigDeviceCount = lambda _: 7
        library.nvmlDeviceGetMigDeviceHandleByIndex = slice_handle
        library.nvmlDeviceGetMemoryInfo = memory
        library.nvmlDeviceGetName = lambda handle: "NVIDIA A100" if handle == gpu else "NVIDIA A100 MIG 1g.10gb"
        library.nvmlDeviceGetUUID = lambda handle: "GPU-33cc" if handle == gpu else f"MIG-{handle}"
        library.nvmlDeviceGetComputeMode = lambda _: 3


def test_slices_of_nvml_have_their_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml()
    Nvml(library, {0: 10 << 30, 4: 20 << 30})
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert [(d.index, d.memory_bytes, d.facts["uuid"], d.facts["mig"]) for d in Nvidia().devices()] == [
        (0, 10 << 30, "MIG-slice 0", "slice"),
        (1, 20 << 30, "MIG-slice 4", "slice"),
    ]


def test_gpu_in_mig_mode_without_slices_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = nvml()
    Nvml(library, {})
    monkeypatch.setitem(sys.modules, "pynvml", library)
    (device,) = Nvidia().devices()
    assert device.facts == {"uuid": "GPU-33cc", "driver": "550.1", "mig": "on", "compute_mode": "exclusive_process"}
