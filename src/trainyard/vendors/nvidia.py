"""NVIDIA devices, as NVML reports them: through nvidia-ml-py if it is installed, else through nvidia-smi.

A fact is a property of a device as text, such as its driver version (`DeviceSeen.facts`: name -> value); telemetry is
what changes during a run, such as clocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.record import DeviceSeen
from trainyard.vendors import mig
from trainyard.vendors.driver import Catalogue, DriverError, parse_int, run_tool, select_visible

_MIB = 2**20
_SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clock throttle reasons (nvmlClocksThrottleReasons) that slow work down."""
_DEVICE_FIELDS = (
    "index", "name", "memory.total", "uuid", "driver_version", "pci.bus_id", "compute_cap", "power.limit",
    "compute_mode", "mig.mode.current",
)  # fmt: skip
_COMPUTE_MODES = ("", "exclusive_thread", "prohibited", "exclusive_process")
"""NVML's compute modes (nvmlComputeMode_t) in order; empty for the default, in which processes share the device."""
_TELEMETRY_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu", "pstate")


class Nvidia(Catalogue):
    """The `Vendor` of CUDA devices."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices that CUDA_VISIBLE_DEVICES makes visible; empty if the driver is missing or broken. In place of a
        GPU in MIG mode, its slices, if it has any."""
        try:
            devices = [
                device for devices_of_gpu in _read_by_library(_describe_devices) for device in devices_of_gpu
            ] or _devices_by_nvidia_smi()
        except DriverError:
            return ()
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            return mig.visible_by_default(devices)
        return select_visible(devices, "CUDA_VISIBLE_DEVICES")

    def telemetry(self) -> Mapping[str, str]:
        """`<device>.<fact>` -> value; `problem`: the message of a broken driver."""
        try:
            readings = _read_by_library(_read_telemetry)
            if readings:
                return {
                    f"{index}.{name}": value for index, facts in enumerate(readings) for name, value in facts.items()
                }
            rows = _query_nvidia_smi(_TELEMETRY_FIELDS)
        except DriverError as error:
            return {"problem": str(error)}
        return {
            f"{index}.{name}": row[name]
            for index, row in enumerate(rows)
            for name in _TELEMETRY_FIELDS
            if _is_reported(row[name])
        }


def _read_by_library(read_device: Callable[[Any, Any, int], Any]) -> list[Any]:
    """Results of `read_device(nvml, handle, index)`, one per device; empty without the library or the driver. `nvml`:
    the module; `handle`: NVML's handle of the device. Raises `DriverError` if the library fails."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        # Without a driver the library is missing: there is no device, which is not an error.
        if type(error).__name__ == "NVMLError_LibraryNotFound":
            return []
        raise DriverError(f"NVML: {error}") from error
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [read_device(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i), i) for i in range(count)]
    except pynvml.NVMLError as error:
        raise DriverError(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _describe_devices(nvml: Any, handle: Any, index: int) -> list[DeviceSeen]:
    """The slices of a GPU in MIG mode, or the GPU itself, from NVML."""
    gpu = _describe_device(nvml, handle, index)
    return (_describe_slices(nvml, handle, gpu) if gpu.facts.get("mig") == "on" else []) or [gpu]


def _describe_slices(nvml: Any, handle: Any, gpu: DeviceSeen) -> list[DeviceSeen]:
    """The MIG slices of a GPU from NVML; numbers of slices that do not exist are left out."""
    slices: list[DeviceSeen] = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slice_handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except nvml.NVMLError:
            continue
        name = _decode_text(nvml.nvmlDeviceGetName(slice_handle))
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(slice_handle).total)
        uuid = _decode_text(nvml.nvmlDeviceGetUUID(slice_handle))
        slices.append(mig.slice_of(gpu, name if "MIG" in name else f"{name} MIG", memory_bytes, uuid))
    return slices


def _describe_device(nvml: Any, handle: Any, index: int) -> DeviceSeen:
    """A device's name, memory and facts (UUID, driver, PCI address, power limit in W, MIG mode, and the compute mode
    if it is not the default) from NVML."""
    facts = {
        "uuid": _read_fact(nvml, lambda h: _decode_text(nvml.nvmlDeviceGetUUID(h)), handle),
        "driver": _read_fact(nvml, lambda _: nvml.nvmlSystemGetDriverVersion(), handle),
        "cuda_driver": _read_fact(nvml, lambda _: nvml.nvmlSystemGetCudaDriverVersion(), handle),
        "pci": _read_fact(nvml, lambda h: _decode_text(nvml.nvmlDeviceGetPciInfo(h).busId), handle),
        "compute_capability": _read_fact(
            nvml, lambda h: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(h))), handle
        ),
        "power_limit_w": _read_fact(nvml, lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) // 1000, handle),
        "mig": _read_fact(nvml, lambda h: ("off", "on")[nvml.nvmlDeviceGetMigMode(h)[0]], handle),
        "compute_mode": _read_fact(nvml, lambda h: _COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(h)], handle),
    }
    return DeviceSeen(
        index=index,
        name=_decode_text(nvml.nvmlDeviceGetName(handle)),
        vendor="nvidia",
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        facts={name: value for name, value in facts.items() if value},
    )


def _read_telemetry(nvml: Any, handle: Any, index: int) -> dict[str, str]:
    """A device's clocks, power draw, temperature (C) and throttle reasons (bit mask) now, under the names of
    nvidia-smi's fields. Values that the device does not report are left out. `index` is unused: `_read_by_library`
    passes it to all readers."""
    facts = {
        "clocks.sm": _read_fact(nvml, lambda h: f"{nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)} MHz", handle),
        "clocks.mem": _read_fact(nvml, lambda h: f"{nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)} MHz", handle),
        "clocks.max.sm": _read_fact(
            nvml, lambda h: f"{nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM)} MHz", handle
        ),
        "power.draw": _read_fact(nvml, lambda h: f"{nvml.nvmlDeviceGetPowerUsage(h) / 1000:.1f} W", handle),
        "temperature.gpu": _read_fact(
            nvml, lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU), handle
        ),
        "throttle": _read_fact(nvml, lambda h: hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)), handle),
        "slowdown": _read_fact(
            nvml, lambda h: describe_slowdown(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)), handle
        ),
    }
    return {name: value for name, value in facts.items() if value}


def describe_slowdown(throttle_reasons: int) -> str:
    """The reasons in NVML's bit mask of clock throttle reasons that slow work down, as text; empty if there are none.
    Idle clocks and clocks set by the user are not among them."""
    return ", ".join(text for bit, text in _SLOWDOWNS.items() if throttle_reasons & bit)


def _read_fact(nvml: Any, read: Callable[[Any], Any], handle: Any) -> str:
    """The text of the fact that `read(handle)` returns; empty if this device or library version does not have it."""
    try:
        return _decode_text(read(handle))
    except (nvml.NVMLError, AttributeError, IndexError):
        return ""


def _decode_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _devices_by_nvidia_smi() -> list[DeviceSeen]:
    """The devices that nvidia-smi lists; empty if it is not installed. Raises `DriverError`."""
    gpus = [_describe_row(row) for row in _query_nvidia_smi(_DEVICE_FIELDS)]
    has_mig = any(gpu.facts.get("mig") == "on" for gpu in gpus)
    listed = mig.parse_list(run_tool("nvidia-smi", "-L") or "") if has_mig else {}
    return [device for gpu in gpus for device in mig.slices_by_list(gpu, listed) or [gpu]]


def _describe_row(row: Mapping[str, str]) -> DeviceSeen:
    """A GPU with its facts, from the fields of nvidia-smi (field -> text)."""
    field_of_fact = {
        "uuid": "uuid",
        "driver": "driver_version",
        "pci": "pci.bus_id",
        "compute_capability": "compute_cap",
    }
    facts = {fact: row[field] for fact, field in field_of_fact.items() if _is_reported(row[field])}
    if _is_reported(row["power.limit"]):
        facts["power_limit_w"] = str(parse_int(row["power.limit"]))
    if row["mig.mode.current"] in ("Enabled", "Disabled"):
        facts["mig"] = "on" if row["mig.mode.current"] == "Enabled" else "off"
    if (mode := row["compute_mode"].lower()) in _COMPUTE_MODES and mode:
        facts["compute_mode"] = mode
    return DeviceSeen(
        index=parse_int(row["index"]),
        name=row["name"],
        vendor="nvidia",
        memory_bytes=parse_int(row["memory.total"]) * _MIB,
        facts=facts,
    )


def _query_nvidia_smi(fields: tuple[str, ...]) -> list[dict[str, str]]:
    """One row per device: field of `nvidia-smi --query-gpu` -> text; empty if it is not installed. Raises
    `DriverError`."""
    import csv

    output = run_tool("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in row] for row in csv.reader((output or "").splitlines()) if row]
    if any(len(row) != len(fields) for row in rows):
        raise DriverError(f"unexpected output of nvidia-smi: {rows[0]!r}")
    return [dict(zip(fields, row)) for row in rows]


def _is_reported(value: str) -> bool:
    """Whether a field of nvidia-smi has a value, rather than `[N/A]` or `[Not Supported]`."""
    return bool(value) and not value.startswith("[")
