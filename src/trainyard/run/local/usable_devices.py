"""Checks that are made before ranks start on this host: that torch and its ranks can use the devices in a format."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.record import DeviceSeen
from trainyard.train.rules.device_state_rules import check_state
from trainyard.train.rules.format_rules import check_format
from trainyard.train.rules.torch_build_rules import check_build, installed_build


def check_usable(devices: Sequence[DeviceSeen], ranks: int, dtype: str, where: str) -> None:
    """Raises `DeviceUnusable` if the installed torch cannot use this host's `devices`, or `ranks` ranks cannot, and the
    error of `check_format` if a device cannot multiply in `dtype`. `where`: as in `check_format`."""
    check_build(devices[0], installed_build())
    check_state(devices, ranks)
    for device in devices[: max(1, ranks)]:
        check_format(dtype, device, where)
