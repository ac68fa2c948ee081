"""Whether the state of this host's devices lets ranks use them: MIG and compute modes. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.errors import DeviceUnusable
from trainyard.record import DeviceSeen
from trainyard.units import counted, show_size


def check_state(devices: Sequence[DeviceSeen], ranks: int) -> None:
    """Raises `DeviceUnusable` if `ranks` ranks on this host cannot use its `devices`, one for each."""
    modes = [device.facts.get("mig", "") for device in devices]
    if "slice" in modes and ranks > 1:
        raise _several_ranks_on_slices(devices, ranks)
    for device in devices[: max(1, ranks)]:
        if device.facts.get("mig") == "on":
            raise DeviceUnusable(
                f"device {device.index} ({device.name}) is in MIG mode but has no slice.",
                "Create slices (nvidia-smi mig -cgi PROFILE -C), or turn the mode off (nvidia-smi -mig 0).",
            )
        if device.facts.get("compute_mode") == "prohibited":
            raise DeviceUnusable(
                f"device {device.index} ({device.name}) is in compute mode Prohibited, in which no process can use it.",
                f"Run: nvidia-smi -i {device.facts.get('pci', device.index)} -c DEFAULT",
            )


def is_slice(device: DeviceSeen) -> bool:
    """Whether `device` is a MIG slice, of which a process can use one."""
    return device.facts.get("mig") == "slice"


def _several_ranks_on_slices(devices: Sequence[DeviceSeen], ranks: int) -> DeviceUnusable:
    slices = [device for device in devices if is_slice(device)]
    sizes = sorted({device.memory_bytes for device in slices} - {0})
    memory = f" of {' and '.join(map(show_size, sizes))}" if sizes else ""
    return DeviceUnusable(
        f"{ranks} ranks on this host, but its devices are {counted(len(slices), 'MIG slice')}{memory} "
        f"({slices[0].name}): a process sees one slice, and NCCL does not connect slices.",
        "Run a single rank on this host, or turn MIG mode off (nvidia-smi -mig 0).",
    )
