"""The load of a machine during a measurement: other processes, stolen CPU time and throttling.

A measurement on a loaded or throttled machine is slower and noisier than the same work elsewhere. The sentences of this
module are printed before the figures of such a measurement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from trainyard.units import listed

_MIN_OTHER_SHARE = 0.1
"""Share of the cores that other processes use from which on a machine counts as loaded."""
_MIN_BUSY_SHARE = 0.75
"""Share of the cores in use, this run included, from which on other processes can delay the run."""
_MIN_STOLEN_SHARE = 0.02
"""Share of CPU time that a hypervisor withholds from which on it is reported."""
_MIN_SHOWN_CORES = 0.05
"""Fewer cores would be printed as 0.0."""
_SLOWDOWN = re.compile(r"(?:.*\.)?(?P<device>[a-z]+\.\d+)\.slowdown")
_MHZ = re.compile(r"\d+")


class MachineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """CPU use of the host during a measurement, from the kernel's counters.

    `window_s`: length of the measurement in s. `cores`: number of online cores. `run_cores`, `other_cores`: mean number
    of cores that the run's own processes, and all others, kept busy. `stolen_cores`: mean number of cores that a
    hypervisor withheld although a process was ready. `cpu_throttles`: number of times that a core was throttled for
    its temperature.
    """

    window_s: float
    cores: int
    run_cores: float
    other_cores: float
    stolen_cores: float = 0.0
    cpu_throttles: int = 0

    @property
    def is_loaded(self) -> bool:
        """Whether other processes, or other virtual machines, took CPU time that the run could have used."""
        in_use = self.run_cores + self.other_cores + self.stolen_cores
        is_contended = self.other_cores >= _MIN_OTHER_SHARE * self.cores and in_use >= _MIN_BUSY_SHARE * self.cores
        return is_contended or self.stolen_cores >= _MIN_STOLEN_SHARE * self.cores or self.cpu_throttles > 0

    @property
    def is_busy(self) -> bool:
        """Whether other processes, or other virtual machines, use so many cores that a measurement should not start."""
        return self.other_cores + self.stolen_cores >= _MIN_OTHER_SHARE * self.cores


def load_of_ranks(loads: Sequence[MachineLoad | None]) -> MachineLoad | None:
    """The load during the work of several ranks on one host, from the loads that each measured at the same time, with
    its own process as the run and the other ranks among the others. None if a rank did not measure it."""
    known = [load for load in loads if load is not None]
    if not known or len(known) < len(loads):
        return None
    busy_cores = known[0].run_cores + known[0].other_cores
    run_cores = sum(load.run_cores for load in known)
    return msgspec.structs.replace(
        known[0], run_cores=min(run_cores, busy_cores), other_cores=max(0.0, busy_cores - run_cores)
    )


def load_warning(load: MachineLoad | None) -> str:
    """A sentence on a loaded or throttled host; empty if it was neither, or if that was not measured."""
    if load is None or not load.is_loaded:
        return ""
    causes: list[str] = []
    if load.other_cores >= _MIN_OTHER_SHARE * load.cores:
        causes.append(f"other processes used {load.other_cores:.1f} of {_cores(load)}, the run {load.run_cores:.1f}")
    if load.stolen_cores >= _MIN_STOLEN_SHARE * load.cores:
        causes.append(f"the hypervisor withheld {load.stolen_cores:.1f} of {_cores(load)} (steal time)")
    if load.cpu_throttles:
        causes.append(f"cores were throttled for their temperature {load.cpu_throttles:,} times")
    return f"The machine was loaded: {'; '.join(causes)}. Times are longer and vary more than on an idle machine."


def present_load_warning(load: MachineLoad | None) -> str:
    """A sentence on the load of a machine before a measurement starts; empty if it is idle enough."""
    if load is None or not load.is_busy:
        return ""
    stolen = f", and a hypervisor withholds {load.stolen_cores:.1f}" if load.stolen_cores >= _MIN_SHOWN_CORES else ""
    return (
        f"This machine is loaded: other processes use {load.other_cores:.1f} of {_cores(load)}{stolen}. Times will be "
        "longer and vary more than on an idle machine."
    )


def throttle_warning(telemetry: Mapping[str, str]) -> str:
    """A sentence on devices that were slowed down; empty if none was. `telemetry`: facts such as
    `at_work.nvidia.0.slowdown` -> `power cap`, `at_work.nvidia.0.clocks.sm` -> `1110 MHz`."""
    slowed = [
        f"{match['device'].replace('.', ' ')} ({reason}{_clock(telemetry, key.removesuffix('slowdown'))})"
        for key, reason in telemetry.items()
        if reason and (match := _SLOWDOWN.fullmatch(key))
    ]
    return (
        f"Devices were throttled: {listed(slowed, 4)}. Their times are not those of the full clock." if slowed else ""
    )


def _clock(telemetry: Mapping[str, str], prefix: str) -> str:
    """`, 1110 of 1980 MHz`, if both clocks of the device are known."""
    # Digits at the beginning of each text.
    now, highest = (_MHZ.match(telemetry.get(f"{prefix}{name}", "")) for name in ("clocks.sm", "clocks.max.sm"))
    return f", {now[0]} of {highest[0]} MHz" if now and highest else ""


def _cores(load: MachineLoad) -> str:
    return f"{load.cores} core{'s' if load.cores > 1 else ''}"
