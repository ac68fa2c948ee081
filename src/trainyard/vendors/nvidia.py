"""NVIDIA devices, as NVML reports them: through nvidia-ml-py if it is installed, else through nvidia-smi."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.record import DeviceSeen
from trainyard.vendors.driver import Catalogue, DriverBroken, parse_int, run_tool, visible

_MIB = 2**20
_STATIC = ("index", "name", "memory.total", "uuid", "driver_version", "pci.bus_id", "compute_cap", "power.limit")
_NOW = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu", "pstate")


class Nvidia(Catalogue):
    """The `Vendor` of CUDA devices."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices that CUDA_VISIBLE_DEVICES makes visible; empty if the driver is missing or broken."""
        try:
            devices = _by_library(_seen) or _by_tool()
        except DriverBroken:
            return ()
        return visible(devices, "CUDA_VISIBLE_DEVICES")

    def telemetry(self) -> Mapping[str, str]:
        """`<device>.<fact>` -> value; `problem`: the message of a broken driver."""
        try:
            readings = _by_library(_now)
            if readings:
                return {
                    f"{index}.{name}": value for index, facts in enumerate(readings) for name, value in facts.items()
                }
            rows = _query(_NOW)
        except DriverBroken as error:
            return {"problem": str(error)}
        return {f"{index}.{name}": row[name] for index, row in enumerate(rows) for name in _NOW if _present(row[name])}


def _by_library(read: Callable[[Any, Any, int], Any]) -> list[Any]:
    """`read(nvml, handle, index)` of each device; empty without the library."""
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
        raise DriverBroken(f"NVML: {error}") from error
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [read(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i), i) for i in range(count)]
    except pynvml.NVMLError as error:
        raise DriverBroken(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _seen(nvml: Any, handle: Any, index: int) -> DeviceSeen:
    facts = {
        "uuid": _try(nvml, lambda h: _text(nvml.nvmlDeviceGetUUID(h)), handle),
        "driver": _try(nvml, lambda _: nvml.nvmlSystemGetDriverVersion(), handle),
        "cuda_driver": _try(nvml, lambda _: nvml.nvmlSystemGetCudaDriverVersion(), handle),
        "pci": _try(nvml, lambda h: _text(nvml.nvmlDeviceGetPciInfo(h).busId), handle),
        "compute_capability": _try(
            nvml, lambda h: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(h))), handle
        ),
        "power_limit_w": _try(nvml, lambda h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) // 1000, handle),
        "mig": _try(nvml, lambda h: ("off", "on")[nvml.nvmlDeviceGetMigMode(h)[0]], handle),
    }
    return DeviceSeen(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        vendor="nvidia",
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        facts={name: value for name, value in facts.items() if value},
    )


def _now(nvml: Any, handle: Any, index: int) -> dict[str, str]:
    facts = {
        "clocks.sm": _try(nvml, lambda h: f"{nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)} MHz", handle),
        "clocks.mem": _try(nvml, lambda h: f"{nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)} MHz", handle),
        "clocks.max.sm": _try(nvml, lambda h: f"{nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM)} MHz", handle),
        "power.draw": _try(nvml, lambda h: f"{nvml.nvmlDeviceGetPowerUsage(h) / 1000:.1f} W", handle),
        "temperature.gpu": _try(nvml, lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU), handle),
        "throttle": _try(nvml, lambda h: hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)), handle),
    }
    return {name: value for name, value in facts.items() if value}


def _try(nvml: Any, call: Callable[[Any], Any], handle: Any) -> str:
    """One fact; empty if this device or library version does not have it."""
    try:
        return _text(call(handle))
    except (nvml.NVMLError, AttributeError, IndexError):
        return ""


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _by_tool() -> list[DeviceSeen]:
    names = {"uuid": "uuid", "driver": "driver_version", "pci": "pci.bus_id", "compute_capability": "compute_cap"}
    return [
        DeviceSeen(
            index=parse_int(row["index"]),
            name=row["name"],
            vendor="nvidia",
            memory_bytes=parse_int(row["memory.total"]) * _MIB,
            facts={ours: row[theirs] for ours, theirs in names.items() if _present(row[theirs])}
            | ({"power_limit_w": str(parse_int(row["power.limit"]))} if _present(row["power.limit"]) else {}),
        )
        for row in _query(_STATIC)
    ]


def _query(fields: tuple[str, ...]) -> list[dict[str, str]]:
    """One row per device; empty if nvidia-smi is not installed. Raises `DriverBroken`."""
    output = run_tool("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in row] for row in csv.reader((output or "").splitlines()) if row]
    if any(len(row) != len(fields) for row in rows):
        raise DriverBroken(f"unexpected output of nvidia-smi: {rows[0]!r}")
    return [dict(zip(fields, row)) for row in rows]


def _present(value: str) -> bool:
    return bool(value) and not value.startswith("[")
