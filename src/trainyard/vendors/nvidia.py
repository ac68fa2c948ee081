"""NVIDIA devices, as NVML reports them: through nvidia-ml-py if it is installed, else through nvidia-smi.

A fact is a property of a device as text, such as its driver version (`DeviceSeen.facts`: name -> value); telemetry is
what changes during a run, such as clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.record import DeviceSeen
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
_DEVICE_FIELDS = ("index", "name", "memory.total", "uuid", "driver_version", "pci.bus_id", "compute_cap", "power.limit")
_TELEMETRY_FIELDS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "power.draw", "temperature.gpu", "pstate")


class Nvidia(Catalogue):
    """The `Vendor` of CUDA devices."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices that CUDA_VISIBLE_DEVICES makes visible; empty if the driver is missing or broken."""
        try:
            devices = _read_by_library(_describe_device) or _devices_by_nvidia_smi()
        except DriverError:
            return ()
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


def _describe_device(nvml: Any, handle: Any, index: int) -> DeviceSeen:
    """A device's name, memory and facts (UUID, driver, PCI address, power limit in W, MIG mode) from NVML."""
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
    field_of_fact = {
        "uuid": "uuid",
        "driver": "driver_version",
        "pci": "pci.bus_id",
        "compute_capability": "compute_cap",
    }
    return [
        DeviceSeen(
            index=parse_int(row["index"]),
            name=row["name"],
            vendor="nvidia",
            memory_bytes=parse_int(row["memory.total"]) * _MIB,
            facts={fact: row[field] for fact, field in field_of_fact.items() if _is_reported(row[field])}
            | ({"power_limit_w": str(parse_int(row["power.limit"]))} if _is_reported(row["power.limit"]) else {}),
        )
        for row in _query_nvidia_smi(_DEVICE_FIELDS)
    ]


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
