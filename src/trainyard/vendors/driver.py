"""What the vendors share: stated peaks, names of kernels, asking a driver's tool, hiding hidden devices."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from trainyard.ledger import Account
from trainyard.machine import Claim, find_device
from trainyard.record import DeviceSeen
from trainyard.vendors import kernel_names

_PATIENCE_S = 20


class DriverBroken(Exception):
    """A driver library or tool is there and does not answer; what it said."""


class Catalogue:
    """The half of a `Vendor` that needs no driver, from what the package knows."""

    def peaks(self, device: DeviceSeen) -> Mapping[str, Claim]:
        """As a machine file states them; empty where none knows the device's name."""
        known = find_device(device.name)
        return known.peak if known and known.vendor == device.vendor else {}

    def kernel_account(self, name: str) -> Account | None:
        return kernel_names.account_of(name)


def ask(*command: str) -> str | None:
    """What a tool prints; None where it is not installed. Raises `DriverBroken` when it fails or hangs."""
    tool = shutil.which(command[0])
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DriverBroken(f"{command[0]} gave no answer in {_PATIENCE_S} s") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DriverBroken(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise DriverBroken(f"{command[0]} exits with {done.returncode}: {said[-1] if said else 'no words'}")
    return done.stdout


def visible(devices: Sequence[DeviceSeen], *variables: str) -> tuple[DeviceSeen, ...]:
    """The devices a process may use, renumbered as it sees them: the first of `variables` that is set decides.

    Each entry is an index, the beginning of a `uuid` fact, or a MIG slice, of which nothing is known but its
    parent's kind; the first unknown one ends the list, as the drivers do it.
    """
    wanted = next((os.environ[name] for name in variables if name in os.environ), None)
    if wanted is None:
        return tuple(devices)
    seen: list[DeviceSeen] = []
    for entry in filter(None, (part.strip() for part in wanted.split(","))):
        if entry.startswith("MIG-") and devices:
            slice_of = replace(devices[0], name=f"{devices[0].name} MIG", memory_bytes=0, facts={"uuid": entry})
            found = [slice_of]
        else:
            found = [d for d in devices if entry == str(d.index) or (len(entry) > 4 and _uuid(d).startswith(entry))]
        if not found:
            break
        seen.append(replace(found[0], index=len(seen)))
    return tuple(seen)


def _uuid(device: DeviceSeen) -> str:
    return device.facts.get("uuid", "")


def whole(value: object, default: int = 0) -> int:
    """An integer out of a driver's text (`81559`, `192 GB` gives 192, `[N/A]` the default)."""
    text = str(value).strip().split(" ")[0]
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return default
