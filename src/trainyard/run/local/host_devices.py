"""The devices of this host that ranks run on. Vendors are plugins that report devices, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.plugins import Vendor
from trainyard.record import DeviceSeen
from trainyard.train.rules.device_state_rules import is_slice


def find_devices(vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    """Return the accelerators of the first vendor that has any, else the host's processor.

    `vendors`: by name; the plugin `pretend`, which simulates devices for tests, comes first.
    """
    for name in sorted(vendors.keys() - {"cpu"}, key=lambda name: (name != "pretend", name)):
        if devices := tuple(vendors[name].devices()):
            return devices
    return tuple(vendors["cpu"].devices())


def driver_warnings(devices: Sequence[DeviceSeen], vendors: Mapping[str, Vendor]) -> tuple[str, ...]:
    """A warning for each vendor whose driver is installed but fails, if the CPU is used for lack of other devices.
    `devices`: the result of `find_devices`; `vendors`: by name."""
    if devices[0].vendor != "cpu":
        return ()
    problems = {name: vendors[name].telemetry().get("problem", "") for name in sorted(vendors.keys() - {"cpu"})}
    return tuple(
        f"The ranks use the CPU, since the driver of {name} devices fails: {problem.rstrip('.')}. If this host has "
        "such devices, repair or update the driver."
        for name, problem in problems.items()
        if problem
    )


def capacity(devices: Sequence[DeviceSeen]) -> int:
    """The number of ranks that these devices can run: one per accelerator, one on MIG slices, or one per CPU core."""
    if devices[0].vendor == "cpu":
        return int(devices[0].facts.get("cores", "1"))
    return 1 if is_slice(devices[0]) else len(devices)
