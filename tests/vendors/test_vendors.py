"""The vendors without their devices: simulated libraries and tools, and broken ones."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.refused import refused
from trainyard import plugins
from trainyard.errors import BadInput
from trainyard.record import DeviceSeen
from trainyard.vendors import cpu_vendor, kernel_names
from trainyard.vendors.amd import Amd
from trainyard.vendors.cpu_vendor import Cpu
from trainyard.vendors.driver import select_visible
from trainyard.vendors.nvidia import Nvidia
from trainyard.vendors.pretend import Pretend

HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TRAINYARD_PRETEND")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hides all driver libraries and tools and clears the visibility variables; returns the folder for a test's tools,
    which is on PATH."""
    for library in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, library, None)
    for variable in HIDING:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(0o755)


NVIDIA_SMI = """
if "memory.total" in sys.argv[1]:
    print("0, NVIDIA H200, 143771 MiB, GPU-11aa, 570.1, 00000000:01:00.0, 9.0, 700.00 W, Default, Disabled")
    print("1, NVIDIA H200, 143771 MiB, GPU-22bb, 570.1, 00000000:02:00.0, 9.0, [N/A], Default, [N/A]")
else:
    print("1980 MHz, 3201 MHz, 1980 MHz, 120.5 W, 34, P0")
    print("345 MHz, 2619 MHz, 1980 MHz, [N/A], 31, P8")
"""


def test_all_vendors_are_plugins() -> None:
    vendors = plugins.load_all("vendors")
    assert vendors.keys() == {"amd", "cpu", "nvidia", "pretend"}
    for vendor in vendors.values():
        assert vendor.kernel_account("ncclDevKernel_AllReduce_Sum") == kernel_names.account_of(
            "ncclDevKernel_AllReduce_Sum"
        )


@pytest.mark.parametrize("vendor", [Nvidia(), Amd(), Pretend()])
def test_without_a_driver_there_are_no_devices_and_no_errors(vendor: plugins.Vendor) -> None:
    assert not vendor.devices()
    assert not vendor.telemetry()


def test_nvidia_through_nvidia_smi(bare: Path) -> None:
    tool(bare, "nvidia-smi", NVIDIA_SMI)
    first, second = Nvidia().devices()
    assert (first.index, first.name, first.vendor, first.memory_bytes) == (0, "NVIDIA H200", "nvidia", 143771 * 2**20)
    assert first.facts["driver"] == "570.1"
    assert first.facts["power_limit_w"] == "700"
    assert "power_limit_w" not in second.facts
    assert Nvidia().peaks(first)["bfloat16"].value > 5e14
    assert Nvidia().peaks(first)["bfloat16"].source
    now = Nvidia().telemetry()
    assert now["0.clocks.sm"] == "1980 MHz"
    assert "1.power.draw" not in now


@pytest.mark.parametrize(
    ("value", "visible_uuids"),
    [
        ("1", ["GPU-22bb"]),
        ("GPU-2", ["GPU-22bb"]),
        ("1,0", ["GPU-22bb", "GPU-11aa"]),
        ("", []),
        ("7,0", []),
        ("-1", []),
    ],
)
def test_cuda_visible_devices_selects_and_renumbers(
    bare: Path, monkeypatch: pytest.MonkeyPatch, value: str, visible_uuids: list[str]
) -> None:
    tool(bare, "nvidia-smi", NVIDIA_SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    devices = Nvidia().devices()
    assert [device.facts["uuid"] for device in devices] == visible_uuids
    assert [device.index for device in devices] == list(range(len(visible_uuids)))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('Failed to initialize NVML: Driver/library version mismatch'); sys.exit(18)", "version mismatch"),
        ("print('what')", "unexpected output of nvidia-smi"),
        ("sys.stdout.buffer.write(bytes([255, 254, 10]))", "nvidia-smi"),
    ],
)
def test_broken_nvidia_driver_is_reported_as_problem(bare: Path, script: str, message: str) -> None:
    tool(bare, "nvidia-smi", script)
    assert not Nvidia().devices()
    assert message in Nvidia().telemetry()["problem"]


def nvml(error: str | None = None) -> Any:
    """A simulated nvidia-ml-py with one device that does not support MIG."""
    library = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def refuse(*_: object) -> None:
        raise type(error or "", (NVMLError,), {})("no")

    names: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": refuse if error else lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda _: b"NVIDIA A100-SXM4-80GB",
        "nvmlDeviceGetMemoryInfo": lambda _: types.SimpleNamespace(total=85899345920),
        "nvmlDeviceGetUUID": lambda _: "GPU-33cc",
        "nvmlSystemGetDriverVersion": lambda: "550.1",
        "nvmlDeviceGetMigMode": lambda _: (_ for _ in ()).throw(NVMLError("not supported")),
        "nvmlDeviceGetClockInfo": lambda _, kind: 1410 if kind == 1 else 1593,
        "nvmlDeviceGetPowerUsage": lambda _: 61_250,
    }
    for name, value in names.items():
        setattr(library, name, value)
    return library


def test_nvidia_through_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    (device,) = Nvidia().devices()
    assert (device.name, device.memory_bytes) == ("NVIDIA A100-SXM4-80GB", 85899345920)
    assert device.facts == {"uuid": "GPU-33cc", "driver": "550.1"}
    assert Nvidia().telemetry() == {"0.clocks.sm": "1410 MHz", "0.clocks.mem": "1593 MHz", "0.power.draw": "61.2 W"}


def test_nvidia_smi_is_used_if_the_library_finds_no_driver(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml("NVMLError_LibraryNotFound"))
    assert not Nvidia().devices()
    tool(bare, "nvidia-smi", NVIDIA_SMI)
    assert len(Nvidia().devices()) == 2


def test_library_with_a_broken_driver_reports_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml("NVMLError_DriverNotLoaded"))
    assert not Nvidia().devices()
    assert Nvidia().telemetry() == {"problem": "NVML: no"}


AMD_SMI_ROW = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
    "bus": {"bdf": "0000:83:00.0"},
    "vram": {"size": {"value": 196592, "unit": "MB"}},
    "driver": {"version": "6.10.5"},
}


@pytest.mark.parametrize("output", [[AMD_SMI_ROW], {"gpu_data": [AMD_SMI_ROW]}])
def test_amd_through_amd_smi(bare: Path, output: object) -> None:
    tool(bare, "amd-smi", f"print({json.dumps(output)!r})")
    (device,) = Amd().devices()
    assert (device.name, device.memory_bytes) == ("AMD Instinct MI300X", 196592 * 2**20)
    assert device.facts == {"driver": "6.10.5", "pci": "0000:83:00.0", "gfx": "gfx942"}
    assert Amd().peaks(device)["bfloat16"].value > 1e15


@pytest.mark.parametrize("key", ["Card series", "Card Series"])
def test_amd_through_rocm_smi(bare: Path, key: str) -> None:
    output = {
        "card1": {key: "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520"},
        "card0": {key: "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520", "GFX Version": "gfx90a"},
        "system": {"Driver version": "6.7.0"},
    }
    tool(bare, "rocm-smi", f"print({json.dumps(output)!r})")
    first, second = Amd().devices()
    assert (first.index, second.index, first.memory_bytes) == (0, 1, 68702699520)
    assert first.facts == {"driver": "6.7.0", "gfx": "gfx90a"}


def test_amd_through_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = types.ModuleType("amdsmi")
    library.AmdSmiException = type("AmdSmiException", (Exception,), {})
    library.AmdSmiClkType = types.SimpleNamespace(GFX=0)
    library.amdsmi_init = library.amdsmi_shut_down = lambda: None
    library.amdsmi_get_processor_handles = lambda: ["h"]
    library.amdsmi_get_gpu_asic_info = lambda _: {"market_name": "AMD Instinct MI300X"}
    library.amdsmi_get_gpu_vram_usage = lambda _: {"vram_total": 196592}
    library.amdsmi_get_clock_info = lambda *_: {"clk": 2100}
    library.amdsmi_get_power_info = lambda _: {"current_socket_power": "N/A", "average_socket_power": 140}
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    (device,) = Amd().devices()
    assert (device.name, device.memory_bytes, device.facts) == ("AMD Instinct MI300X", 196592 * 2**20, {})
    assert Amd().telemetry() == {"0.clocks.gfx": "2100 MHz", "0.power.draw": "140 W"}


def test_broken_amd_tool_is_reported_as_problem(bare: Path) -> None:
    tool(bare, "rocm-smi", "print('ERROR: no driver')")
    assert not Amd().devices()
    assert "rocm-smi is not JSON" in Amd().telemetry()["problem"]


def test_cpu_is_always_available() -> None:
    (device,) = Cpu().devices()
    assert device.name
    assert int(device.facts["cores"]) >= 1
    assert device.memory_bytes > 2**20
    assert float(Cpu().telemetry()["load"]) >= 0
    assert Cpu().peaks(device) == {}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "9900000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
)
def test_cores_are_limited_by_the_containers_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(cpu_vendor, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cpu_vendor.cores() == expected


def test_pretend_devices_are_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PRETEND", "4")
    devices = Pretend().devices()
    assert [device.index for device in devices] == [0, 1, 2, 3]
    assert devices == Pretend().devices()
    assert Pretend().peaks(devices[0])["float32"].value == 1e12
    monkeypatch.setenv("TRAINYARD_PRETEND", "many")
    with refused(BadInput, "TRAINYARD_PRETEND = 'many'"):
        Pretend().devices()


def test_first_variable_that_is_set_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [DeviceSeen(index=i, name="d", vendor="amd") for i in range(3)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,2")
    assert len(select_visible(devices, "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")) == 2


def test_hip_numbers_the_devices_visible_to_rocr(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {f"card{i}": {"Card Series": f"card {i}", "VRAM Total Memory (B)": "1"} for i in range(4)}
    tool(bare, "rocm-smi", f"print({json.dumps(cards)!r})")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert [(device.index, device.name) for device in Amd().devices()] == [(0, "card 3")]


def test_mig_slice_is_a_device_without_peaks(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(bare, "nvidia-smi", NVIDIA_SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    devices = Nvidia().devices()
    assert [(device.index, device.name) for device in devices] == [(0, "NVIDIA H200 MIG"), (1, "NVIDIA H200 MIG")]
    assert Nvidia().peaks(devices[0]) == {}
