"""Devices that a framework does not run on, or only another version of it: data/framework_devices.toml."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources

import msgspec

from trainyard.formats import toml
from trainyard.machine import Machine


class DeviceException(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A framework on devices of a `vendor`, or on some of its `machines`. `runs`: whether another version of it runs
    there; `note`: a clause on that version, or on why there is none; `instead`: the framework that runs there."""

    framework: str
    vendor: str
    note: str
    source: str
    date: str
    machines: tuple[str, ...] = ()
    runs: bool = False
    instead: str = ""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exception: tuple[DeviceException, ...]


@cache
def known() -> tuple[DeviceException, ...]:
    """The exceptions in the package."""
    text = (resources.files("trainyard") / "data" / "framework_devices.toml").read_text("utf-8")
    return msgspec.convert(toml.loads(text), _Document).exception


def find(framework: str, machine: Machine) -> DeviceException | None:
    """The exception of a framework on a machine; None if it runs there as it is."""
    return next(
        (
            known_exception
            for known_exception in known()
            if known_exception.framework == framework
            and known_exception.vendor == machine.device.vendor
            and (not known_exception.machines or machine.name in known_exception.machines)
        ),
        None,
    )


def runs(framework: str, machine: Machine) -> bool:
    """Whether a framework runs on a machine, as it is or in another version."""
    exception = find(framework, machine)
    return exception is None or exception.runs


def describe(framework: str, display_name: str, machine: Machine, trains: Callable[[str], bool]) -> list[str]:
    """A sentence if a framework does not run on a machine, or only another version of it, with the framework to use
    instead if it trains the job. `display_name`: of the framework in sentences; `trains`: whether a framework trains
    the job."""
    exception = find(framework, machine)
    if exception is None:
        return []
    origin = f"({exception.source}, {exception.date})"
    name = f"{display_name[0].upper()}{display_name[1:]}" if framework == "trainyard" else display_name
    device = machine.device.name
    if exception.runs:
        note = f"{name} runs on {device} in another version: {exception.note} {origin}."
    else:
        note = (
            f"{name} does not run on {device}: {exception.note} {origin}. The plan is for a port of it with the same "
            "layouts and memory."
        )
    instead = exception.instead
    return [note + f" Or pass --for {instead}." if instead and trains(instead) else note]
