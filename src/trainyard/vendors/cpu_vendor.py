"""The host's CPU: always available, and the device of a job if there is no other."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from trainyard.memory_cgroups import memory_groups, memory_limit_bytes
from trainyard.record import DeviceSeen
from trainyard.units import show_size
from trainyard.vendors.driver import Catalogue, parse_int

_CGROUP = Path("/sys/fs/cgroup")
_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")


class Cpu(Catalogue):
    """The `Vendor` of the host: all its cores together are one device."""

    def devices(self) -> Sequence[DeviceSeen]:
        """One device: the host's CPU with its cores, threads, instruction set and vector extensions as facts.

        `memory_bytes`: the host's memory, or the limit of the process's cgroups if that is lower, which the fact
        `memory_limit` then states.
        """
        facts = {
            "cores": str(cores()),
            "threads": str(os.cpu_count() or 1),
            "isa": platform.machine(),
            **_vector_extensions(),
        }
        host_bytes, limit_bytes = _memory_bytes(), memory_limit_bytes(memory_groups())
        memory_bytes = host_bytes
        if limit_bytes and (limit_bytes < host_bytes or not host_bytes):
            facts["memory_limit"] = f"{show_size(limit_bytes)} of {show_size(host_bytes)}, by a cgroup"
            memory_bytes = limit_bytes
        return (DeviceSeen(index=0, name=_cpu_name(), vendor="cpu", memory_bytes=memory_bytes, facts=facts),)

    def telemetry(self) -> Mapping[str, str]:
        """`governor` and `frequency`, if the kernel reports them, and the `load` of the last minute."""
        facts = {"governor": _read_line(_CPUFREQ / "scaling_governor")}
        khz = parse_int(_read_line(_CPUFREQ / "scaling_cur_freq"))
        facts["frequency"] = f"{khz // 1000} MHz" if khz else ""
        facts["load"] = f"{os.getloadavg()[0]:.2f}"
        return {name: value for name, value in facts.items() if value}


def cores() -> int:
    """Number of cores that this process may use: those of its CPU affinity, at most a container's CPU quota (cgroup
    version 2, else version 1), rounded up. The quota is CPU time per period, both in us; `max` or negative for none."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    version_1_quota = (_read_line(_CGROUP / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    quota, period = (_read_line(_CGROUP / "cpu.max") or " ".join(version_1_quota)).split() or ("max", "")
    return min(available, max(1, ceil(int(quota) / int(period)))) if quota.isdecimal() else available


def _cpu_name() -> str:
    return _read_cpuinfo("model name") or _read_cpuinfo("Processor") or platform.processor() or platform.machine()


def _vector_extensions() -> dict[str, str]:
    """The vector and matrix extensions that determine the speed of matrix products."""
    flags = set((_read_cpuinfo("flags") or _read_cpuinfo("Features")).split())
    extensions = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "sve", "sve2", "bf16")
    return {"extensions": " ".join(flag for flag in extensions if flag in flags)} if flags else {}


def _read_cpuinfo(key: str) -> str:
    """The first processor's value of a key in /proc/cpuinfo; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


def _memory_bytes() -> int:
    """Physical memory of the host in bytes; 0 if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _read_line(path: Path) -> str:
    """The text of a file of one line, such as those of /sys; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
