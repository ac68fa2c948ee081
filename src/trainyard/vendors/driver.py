"""Code shared by the vendors: stated peaks, kernel names, running a driver's tool, visible devices.

A vendor lists the devices of one maker (`nvidia.py`, `amd.py`, `cpu_vendor.py`); an account is a category of time of
the step ledger, such as `compute/matmul`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from trainyard.ledger import Account
from trainyard.machine import Claim, find_device
from trainyard.record import DeviceSeen
from trainyard.vendors import kernel_names
from trainyard.vendors.mig import SLICE

_TOOL_TIMEOUT_S = 20
_MIN_UUID_CHARACTERS = 5
"""Characters from which an entry of a visibility variable can be the beginning of a UUID, which starts with GPU-."""

_VERSIONS = ("driver", "cuda_driver", "compute_capability")
"""Facts that the GPUs of a host are assumed to share."""


class DriverError(Exception):
    """A driver library or tool is installed but fails. The message is the error that it reports."""


class Catalogue:
    """The part of a `Vendor` that needs no driver: the peaks and kernel names that the package knows."""

    def peaks(self, device: DeviceSeen) -> Mapping[str, Claim]:
        """The peaks in the machine files, by dtype; empty if no machine file has the device's name."""
        known_device = find_device(device.name)
        return known_device.peak if known_device and known_device.vendor == device.vendor else {}

    def kernel_account(self, name: str) -> Account | None:
        """The account of a kernel by its name; None if no pattern matches."""
        return kernel_names.account_of(name)


def run_tool(*command: str) -> str | None:
    """Runs a tool and returns its output (stdout); None if it is not installed. Raises `DriverError` if it fails or
    hangs."""
    import shutil
    import subprocess

    tool = shutil.which(command[0])
    if tool is None:
        return None
    try:
        process = subprocess.run(
            [tool, *command[1:]], capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DriverError(f"{command[0]} did not respond in {_TOOL_TIMEOUT_S} s") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DriverError(f"{command[0]}: {error}") from error
    if process.returncode:
        output = (process.stderr.strip() or process.stdout.strip()).splitlines()
        raise DriverError(f"{command[0]} exits with {process.returncode}: {output[-1] if output else 'no output'}")
    return process.stdout


def select_visible(devices: Sequence[DeviceSeen], *variables: str) -> tuple[DeviceSeen, ...]:
    """Returns the devices that the first variable set in the environment makes visible (`CUDA_VISIBLE_DEVICES=2,0`),
    renumbered in its order; all devices if none of `variables` is set.

    Each entry of the variable is an index, or the beginning of a `uuid` fact; of a MIG slice that is not among
    `devices`, only the first GPU's name and version numbers are known. The first unknown entry ends the list, as in the
    drivers."""
    entries = next((os.environ[name] for name in variables if name in os.environ), None)
    if entries is None:
        return tuple(devices)
    selected: list[DeviceSeen] = []
    for entry in filter(None, (part.strip() for part in entries.split(","))):
        is_uuid = len(entry) >= _MIN_UUID_CHARACTERS
        matches = [d for d in devices if entry == str(d.index) or (is_uuid and _uuid(d).startswith(entry))]
        if not matches and entry.startswith("MIG-") and devices:
            matches = [_unlisted_slice(devices[0], entry)]
        if not matches:
            break
        selected.append(replace(matches[0], index=len(selected)))
    return tuple(selected)


def _unlisted_slice(gpu: DeviceSeen, entry: str) -> DeviceSeen:
    """A MIG slice of unknown memory, on a GPU like `gpu`, by its `entry` in a visibility variable."""
    versions = {name: gpu.facts[name] for name in _VERSIONS if name in gpu.facts}
    name = gpu.name.partition(" MIG")[0]
    return replace(gpu, name=f"{name} MIG", memory_bytes=0, facts={**versions, "uuid": entry, "mig": SLICE})


def _uuid(device: DeviceSeen) -> str:
    """The device's UUID as its driver reports it; empty if unknown."""
    return device.facts.get("uuid", "")


def parse_int(value: object, default: int = 0) -> int:
    """The integer in a driver's text: `192 GB` gives 192, `[N/A]` gives the default."""
    text = str(value).strip().split(" ")[0]
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return default
