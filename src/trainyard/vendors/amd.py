"""AMD devices: through the amdsmi library if it is installed, else amd-smi, else rocm-smi.

A fact is a property of a device as text, such as its driver version (`DeviceSeen.facts`: name -> value); telemetry is
what changes during a run, such as clocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.record import DeviceSeen
from trainyard.vendors.driver import Catalogue, DriverError, parse_int, run_tool, select_visible

_MIB = 2**20
_BYTES_PER_UNIT = {"B": 1, "KB": 2**10, "MB": _MIB, "GB": 2**30}


class Amd(Catalogue):
    """The `Vendor` of ROCm devices."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices that HIP's and ROCr's variables make visible; empty if the driver is missing or broken."""
        try:
            devices = _read_by_library(_describe_device) or _devices_by_amd_smi() or _devices_by_rocm_smi()
        except DriverError:
            return ()
        # ROCr filters first; HIP numbers the devices that ROCr makes visible.
        return select_visible(
            select_visible(devices, "ROCR_VISIBLE_DEVICES"), "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
        )

    def telemetry(self) -> Mapping[str, str]:
        """`<device>.<fact>` -> value; `problem`: the message of a broken driver."""
        try:
            readings = _read_by_library(_read_telemetry) or _telemetry_by_rocm_smi()
        except DriverError as error:
            return {"problem": str(error)}
        return {f"{index}.{name}": value for index, facts in enumerate(readings) for name, value in facts.items()}


def _read_by_library(read_device: Any) -> list[Any]:
    """Results of `read_device(amdsmi, handle, index)`, one per device; empty without the library. `amdsmi`: the module;
    `handle`: the library's handle of the device. Raises `DriverError` if the library fails."""
    try:
        import amdsmi
    except (ImportError, KeyError, OSError):  # it looks for its shared library when imported
        return []
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise DriverError(f"amdsmi: {error}") from error
    try:
        return [read_device(amdsmi, handle, i) for i, handle in enumerate(amdsmi.amdsmi_get_processor_handles())]
    except amdsmi.AmdSmiException as error:
        raise DriverError(f"amdsmi: {error}") from error
    finally:
        amdsmi.amdsmi_shut_down()


def _describe_device(amdsmi: Any, handle: Any, index: int) -> DeviceSeen:
    """A device's name, memory and facts (UUID, driver version, PCI address, gfx version) from the amdsmi library."""
    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    facts = {
        "uuid": _read_fact(amdsmi, lambda: amdsmi.amdsmi_get_gpu_device_uuid(handle)),
        "driver": _read_fact(amdsmi, lambda: amdsmi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
        "pci": _read_fact(amdsmi, lambda: amdsmi.amdsmi_get_gpu_device_bdf(handle)),
        "gfx": str(asic.get("target_graphics_version", "")),
    }
    return DeviceSeen(
        index=index,
        name=str(asic["market_name"]),
        vendor="amd",
        memory_bytes=parse_int(amdsmi.amdsmi_get_gpu_vram_usage(handle)["vram_total"]) * _MIB,
        facts=_drop_missing(facts),
    )


def _read_telemetry(amdsmi: Any, handle: Any, index: int) -> dict[str, str]:
    """A device's clocks and power draw now: `clocks.gfx` -> `1300 MHz`, `power.draw` -> `250 W`. Values that the device
    does not report are left out. `index` is unused: `_read_by_library` passes it to all readers."""

    def clock(kind: str) -> str:
        return f"{amdsmi.amdsmi_get_clock_info(handle, getattr(amdsmi.AmdSmiClkType, kind))['clk']} MHz"

    def power() -> str:
        info = amdsmi.amdsmi_get_power_info(handle)
        watts = [info.get(name) for name in ("current_socket_power", "average_socket_power")]
        return next((f"{value} W" for value in watts if value not in (None, "N/A", 0)), "")

    facts = {
        name: _read_fact(amdsmi, lambda kind=kind: clock(kind))
        for name, kind in (("clocks.gfx", "GFX"), ("clocks.mem", "MEM"))
    }
    return _drop_missing({**facts, "power.draw": _read_fact(amdsmi, power)})


def _read_fact(amdsmi: Any, read: Any) -> str:
    """Calls a reader of one fact; empty if this device or library version does not have it."""
    try:
        return str(read())
    except (amdsmi.AmdSmiException, AttributeError, KeyError):
        return ""


def _devices_by_amd_smi() -> list[DeviceSeen]:
    """The devices that `amd-smi static --json` lists; empty if the tool is not installed. Raises `DriverError` if it
    fails. By its version, the output is a list of devices or has the list under `gpu_data`."""
    output = _decode_output(run_tool("amd-smi", "static", "--asic", "--vram", "--driver", "--bus", "--json"), "amd-smi")
    rows = output.get("gpu_data", []) if isinstance(output, dict) else output or []
    return [
        DeviceSeen(
            index=parse_int(row.get("gpu"), default=i),
            name=str(row["asic"]["market_name"]),
            vendor="amd",
            memory_bytes=_size_bytes(row.get("vram", {}).get("size", {})),
            facts=_drop_missing(
                {
                    "driver": row.get("driver", {}).get("version"),
                    "pci": row.get("bus", {}).get("bdf"),
                    "gfx": row["asic"].get("target_graphics_version"),
                }
            ),
        )
        for i, row in enumerate(rows)
        if isinstance(row, dict) and "market_name" in row.get("asic", {})
    ]


def _size_bytes(size: dict[str, Any]) -> int:
    """Bytes of a size that amd-smi prints as `{"value": 192, "unit": "GB"}`."""
    return parse_int(size.get("value")) * _BYTES_PER_UNIT.get(str(size.get("unit", "")).upper(), 1)


def _devices_by_rocm_smi() -> list[DeviceSeen]:
    """The devices that rocm-smi lists; empty if the tool is not installed. Raises `DriverError`."""
    cards, system = _query_rocm_smi("--showproductname", "--showmeminfo", "vram", "--showdriverversion")
    driver = system.get("driver version")
    return [
        DeviceSeen(
            index=index,
            name=str(card.get("card series") or card.get("card model") or "AMD device"),
            vendor="amd",
            memory_bytes=parse_int(card.get("vram total memory (b)")),
            facts=_drop_missing({"driver": driver, "gfx": card.get("gfx version")}),
        )
        for index, card in enumerate(cards)
    ]


def _telemetry_by_rocm_smi() -> list[dict[str, str]]:
    """Clocks and power of each device, by rocm-smi's lower-case keys (`average graphics package power (w)`)."""
    cards, _ = _query_rocm_smi("--showclocks", "--showpower")
    return [
        {name: str(value) for name, value in card.items() if "clock speed" in name or "power" in name} for card in cards
    ]


def _query_rocm_smi(*options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Runs `rocm-smi OPTIONS --json` and returns each card's table (key -> value) in order, and the system's table.
    Keys are lower-cased, since their case differs by release."""
    output = _decode_output(run_tool("rocm-smi", *options, "--json"), "rocm-smi")
    tables = {
        name: {key.lower(): value for key, value in table.items()}
        for name, table in (output or {}).items()
        if isinstance(table, dict)
    }
    cards = sorted((name for name in tables if name.startswith("card")), key=lambda name: parse_int(name[4:]))
    return [tables[name] for name in cards], tables.get("system", {})


def _decode_output(output: str | None, tool: str) -> Any:
    """Decodes a tool's JSON output; None if the tool is not installed. Raises `DriverError`."""
    if output is None:
        return None
    try:
        return json.loads(output)
    except ValueError as error:
        raise DriverError(f"the output of {tool} is not JSON: {output[:80]!r}") from error


def _drop_missing(facts: Mapping[str, Any]) -> dict[str, str]:
    """The facts as text, without those that are None, empty or `N/A`."""
    return {name: str(value) for name, value in facts.items() if value not in (None, "", "N/A")}
