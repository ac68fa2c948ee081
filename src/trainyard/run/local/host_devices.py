"""The devices of this host that ranks run on. Vendors are plugins that report devices, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.plugins import Vendor
from trainyard.record import DeviceSeen


def find_devices(vendors: Mapping[str, Vendor]) -> tuple[DeviceSeen, ...]:
    """Return the accelerators of the first vendor that has any, else the host's processor.

    `vendors`: by name; the plugin `pretend`, which simulates devices for tests, comes first.
    """
    for name in sorted(vendors.keys() - {"cpu"}, key=lambda name: (name != "pretend", name)):
        if devices := tuple(vendors[name].devices()):
            return devices
    return tuple(vendors["cpu"].devices())


def capacity(devices: Sequence[DeviceSeen]) -> int:
    """The number of ranks that these devices can run: one per accelerator, or one per CPU core."""
    if devices[0].vendor == "cpu":
        return int(devices[0].facts.get("cores", "1"))
    return len(devices)
