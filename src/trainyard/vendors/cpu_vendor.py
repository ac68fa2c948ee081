"""The host's CPU: always available, and the device of a job if there is no other."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from trainyard.record import DeviceSeen
from trainyard.vendors.driver import Catalogue, parse_int

_CGROUP = Path("/sys/fs/cgroup")
_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")


class Cpu(Catalogue):
    """The `Vendor` of the host: all its cores together are one device."""

    def devices(self) -> Sequence[DeviceSeen]:
        facts = {"cores": str(cores()), "threads": str(os.cpu_count() or 1), "isa": platform.machine(), **_widths()}
        return (DeviceSeen(index=0, name=_model(), vendor="cpu", memory_bytes=_memory(), facts=facts),)

    def telemetry(self) -> Mapping[str, str]:
        """`governor` and `frequency`, if the kernel reports them, and the `load` of the last minute."""
        facts = {"governor": _line(_CPUFREQ / "scaling_governor")}
        khz = parse_int(_line(_CPUFREQ / "scaling_cur_freq"))
        facts["frequency"] = f"{khz // 1000} MHz" if khz else ""
        facts["load"] = f"{os.getloadavg()[0]:.2f}"
        return {name: value for name, value in facts.items() if value}


def cores() -> int:
    """Number of cores that this process may use; at most a container's CPU quota, rounded up."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    first_version = (_line(_CGROUP / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    quota, period = (_line(_CGROUP / "cpu.max") or " ".join(first_version)).split() or ("max", "")
    return min(available, max(1, ceil(int(quota) / int(period)))) if quota.isdecimal() else available


def _model() -> str:
    return _cpuinfo("model name") or _cpuinfo("Processor") or platform.processor() or platform.machine()


def _widths() -> dict[str, str]:
    """The vector and matrix extensions that determine the speed of matrix products."""
    flags = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "sve", "sve2", "bf16")
    return {"extensions": " ".join(flag for flag in known if flag in flags)} if flags else {}


def _cpuinfo(key: str) -> str:
    """The first processor's value of a key in /proc/cpuinfo; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _line(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
