"""AMD devices: through the amdsmi library if it is installed, else amd-smi, else rocm-smi."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.record import DeviceSeen
from trainyard.vendors.driver import Catalogue, DriverBroken, parse_int, run_tool, visible

_MIB = 2**20
_UNITS = {"B": 1, "KB": 2**10, "MB": _MIB, "GB": 2**30}


class Amd(Catalogue):
    """The `Vendor` of ROCm devices."""

    def devices(self) -> Sequence[DeviceSeen]:
        """The devices that HIP's and ROCr's variables make visible; empty if the driver is missing or broken."""
        try:
            devices = _by_library(_seen) or _by_amd_smi() or _by_rocm_smi()
        except DriverBroken:
            return ()
        # ROCr filters first; HIP numbers the devices that ROCr makes visible.
        return visible(visible(devices, "ROCR_VISIBLE_DEVICES"), "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

    def telemetry(self) -> Mapping[str, str]:
        """`<device>.<fact>` -> value; `problem`: the message of a broken driver."""
        try:
            readings = _by_library(_now) or _now_by_rocm_smi()
        except DriverBroken as error:
            return {"problem": str(error)}
        return {f"{index}.{name}": value for index, facts in enumerate(readings) for name, value in facts.items()}


def _by_library(read: Any) -> list[Any]:
    """`read(amdsmi, handle, index)` of each device; empty without the library or the driver."""
    try:
        import amdsmi
    except (ImportError, KeyError, OSError):  # it looks for its shared library when imported
        return []
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise DriverBroken(f"amdsmi: {error}") from error
    try:
        return [read(amdsmi, handle, i) for i, handle in enumerate(amdsmi.amdsmi_get_processor_handles())]
    except amdsmi.AmdSmiException as error:
        raise DriverBroken(f"amdsmi: {error}") from error
    finally:
        amdsmi.amdsmi_shut_down()


def _seen(amdsmi: Any, handle: Any, index: int) -> DeviceSeen:
    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    facts = {
        "uuid": _try(amdsmi, lambda: amdsmi.amdsmi_get_gpu_device_uuid(handle)),
        "driver": _try(amdsmi, lambda: amdsmi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
        "pci": _try(amdsmi, lambda: amdsmi.amdsmi_get_gpu_device_bdf(handle)),
        "gfx": str(asic.get("target_graphics_version", "")),
    }
    return DeviceSeen(
        index=index,
        name=str(asic["market_name"]),
        vendor="amd",
        memory_bytes=parse_int(amdsmi.amdsmi_get_gpu_vram_usage(handle)["vram_total"]) * _MIB,
        facts=_present(facts),
    )


def _now(amdsmi: Any, handle: Any, index: int) -> dict[str, str]:
    def clock(kind: str) -> str:
        return f"{amdsmi.amdsmi_get_clock_info(handle, getattr(amdsmi.AmdSmiClkType, kind))['clk']} MHz"

    def power() -> str:
        info = amdsmi.amdsmi_get_power_info(handle)
        watts = [info.get(name) for name in ("current_socket_power", "average_socket_power")]
        return next((f"{value} W" for value in watts if value not in (None, "N/A", 0)), "")

    facts = {
        name: _try(amdsmi, lambda kind=kind: clock(kind))
        for name, kind in (("clocks.gfx", "GFX"), ("clocks.mem", "MEM"))
    }
    return _present({**facts, "power.draw": _try(amdsmi, power)})


def _try(amdsmi: Any, call: Any) -> str:
    try:
        return str(call())
    except (amdsmi.AmdSmiException, AttributeError, KeyError):
        return ""


def _by_amd_smi() -> list[DeviceSeen]:
    output = _parsed(run_tool("amd-smi", "static", "--asic", "--vram", "--driver", "--bus", "--json"), "amd-smi")
    rows = output.get("gpu_data", []) if isinstance(output, dict) else output or []
    return [
        DeviceSeen(
            index=parse_int(row.get("gpu"), default=i),
            name=str(row["asic"]["market_name"]),
            vendor="amd",
            memory_bytes=_size(row.get("vram", {}).get("size", {})),
            facts=_present(
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


def _size(size: dict[str, Any]) -> int:
    return parse_int(size.get("value")) * _UNITS.get(str(size.get("unit", "")).upper(), 1)


def _by_rocm_smi() -> list[DeviceSeen]:
    cards, system = _rocm_smi("--showproductname", "--showmeminfo", "vram", "--showdriverversion")
    driver = system.get("driver version")
    return [
        DeviceSeen(
            index=index,
            name=str(card.get("card series") or card.get("card model") or "AMD device"),
            vendor="amd",
            memory_bytes=parse_int(card.get("vram total memory (b)")),
            facts=_present({"driver": driver, "gfx": card.get("gfx version")}),
        )
        for index, card in enumerate(cards)
    ]


def _now_by_rocm_smi() -> list[dict[str, str]]:
    cards, _ = _rocm_smi("--showclocks", "--showpower")
    return [
        {name: str(value) for name, value in card.items() if "clock speed" in name or "power" in name} for card in cards
    ]


def _rocm_smi(*options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Each card's table in order, and the system's table. Keys are lower-cased, since their case differs by release."""
    output = _parsed(run_tool("rocm-smi", *options, "--json"), "rocm-smi")
    tables = {
        name: {key.lower(): value for key, value in table.items()}
        for name, table in (output or {}).items()
        if isinstance(table, dict)
    }
    cards = sorted((name for name in tables if name.startswith("card")), key=lambda name: parse_int(name[4:]))
    return [tables[name] for name in cards], tables.get("system", {})


def _parsed(output: str | None, tool: str) -> Any:
    if output is None:
        return None
    try:
        return json.loads(output)
    except ValueError as error:
        raise DriverBroken(f"the output of {tool} is not JSON: {output[:80]!r}") from error


def _present(facts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items() if value not in (None, "", "N/A")}
