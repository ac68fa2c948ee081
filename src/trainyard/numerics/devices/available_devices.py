"""The devices of this machine that torch can use."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.errors import DeviceUnusable


def check_available(devices: Sequence[str]) -> None:
    """Raises `DeviceUnusable` for a device that torch knows and that this machine lacks. Names that torch does not know
    are left to the command."""
    try:
        import torch
    except ImportError:  # the command's own Python may have it
        return
    for name in devices:
        try:
            device = torch.device(name)
        except RuntimeError:
            continue
        if device.type == "cpu":
            continue
        module = getattr(torch, device.type, None)
        is_available = getattr(module, "is_available", None)
        count = getattr(module, "device_count", None)
        if is_available is None:
            continue
        if not is_available() or (device.index is not None and count is not None and device.index >= count()):
            raise DeviceUnusable(
                f"this machine has no device {name!r} that torch {torch.__version__} can use, only "
                f"{', '.join(_available())}.",
                "Record that side on a machine that has it with --only, and copy its folder.",
            )


def _available() -> list[str]:
    """`cpu`, and the accelerators of this machine by index."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ["cpu"]
    return ["cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count()))]


def is_accelerator(device: str) -> bool:
    """Whether a name is that of a kind of accelerator that torch knows."""
    try:
        import torch

        return torch.device(device).type != "cpu"
    except (ImportError, RuntimeError):
        return False
