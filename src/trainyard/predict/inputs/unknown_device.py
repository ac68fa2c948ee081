"""A machine file whose device is not of the package: which constants are assumed for it, and the device it may be.

Constants are fitted by device, which a machine file names in `[device] name`.
"""

from __future__ import annotations

from trainyard import machine as machines
from trainyard.errors import near
from trainyard.machine import Device, Machine
from trainyard.predict.inputs import constant_sets

_SAME_NUMBER = 0.01
"""Relative difference of two claims of the same device, of which one was rounded."""


def describe(machine: Machine) -> str:
    """A sentence on the constants of a machine whose device is not known by its name, with the known device that it may
    be; empty if it is known, or if the machine has constants of its own."""
    device = machine.device
    if machine.calibration or machines.find_machine(device.name):
        return ""
    own_rate = " but the rate of matrix products, which is that of its device.achieved"
    return (
        f"The constants of {machine.name} are assumed (the attained shares of peaks and bandwidths, the times of the "
        f"host), all{own_rate * constant_sets.has_own_rate(machine)}: no known device is named {device.name!r}. "
        f"{_suggest_device(device)}"
    )


def _suggest_device(device: Device) -> str:
    """The next step: the known device with the same numbers or a similar name, else a fit to runs."""
    known = {name: machines.load(name).device for name in machines.known()}
    twin = next((name for name, other in known.items() if _has_same_numbers(device, other)), None)
    if twin:
        return f"It has the numbers of {twin}: for its fitted constants, write name = {known[twin].name!r} in [device]."
    if path := machines.find_file(device.name):
        return f"Did you mean {machines.load(str(path)).device.name!r}?"
    return near(device.name, (other.name for other in known.values())) or "Fit constants to runs: trainyard probe fit."


def _has_same_numbers(device: Device, other: Device) -> bool:
    """Whether two devices have the same vendor, memory bandwidth and peaks, of at least one format."""
    if device.vendor != other.vendor or not device.peak.keys() & other.peak.keys():
        return False
    pairs = [(claim, other.peak[dtype]) for dtype, claim in device.peak.items() if dtype in other.peak]
    return all(abs(a.value / b.value - 1) <= _SAME_NUMBER for a, b in (*pairs, (device.bandwidth, other.bandwidth)))
