"""Number formats that a device can multiply, by its compute capability or GFX version. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.errors import BadInput, BadJob
from trainyard.record import DeviceSeen

_LEAST_CAPABILITY: Mapping[str, tuple[int, int]] = {"tf32": (8, 0), "bfloat16": (8, 0), "float8": (8, 9)}
"""Compute capability from which tensor cores have a format (CUDA C++ Programming Guide, Compute Capabilities)."""
_FLOAT8_GFX = ("gfx942", "gfx950", "gfx1200", "gfx1201")
"""GFX versions for which torch has scaled products in float8 (torch._scaled_mm)."""
_ALTERNATIVE: Mapping[str, str] = {
    "tf32": "Use dtype = 'float32'",
    "bfloat16": "Use dtype = 'float16' or 'float32'",
    "float8": "Use dtype = 'bfloat16'",
}


def check_format(dtype: str, device: DeviceSeen, where: str) -> None:
    """Raises an error if `device` cannot multiply in `dtype`; accepts a device whose version is unknown.

    `where`: the setting that chose `dtype`, for the message. The error is a `BadJob` if that is in a job file, such as
    `$.recipe`, and a `BadInput` if it is an option of the command line.
    """
    kind = BadJob if where.startswith("$") else BadInput
    if device.vendor == "nvidia" and dtype in _LEAST_CAPABILITY:
        capability = _parse_version(device.facts.get("compute_capability", ""))
        least = _LEAST_CAPABILITY[dtype]
        if capability and capability < least:
            has, needs = (f"compute capability {major}.{minor}" for major, minor in (capability, least))
            raise kind(
                f"dtype = {dtype!r} at {where} needs {needs}, but {device.name} has {has}.",
                f"{_alternative(dtype, capability)}, or another device.",
            )
    gfx = device.facts.get("gfx", "")
    if device.vendor == "amd" and dtype == "float8" and gfx and gfx not in _FLOAT8_GFX:
        raise kind(
            f"dtype = 'float8' at {where} needs {', '.join(_FLOAT8_GFX[:-1])} or {_FLOAT8_GFX[-1]}, but {device.name} "
            f"is {gfx}.",
            f"{_ALTERNATIVE[dtype]}, or another device.",
        )


def _alternative(dtype: str, capability: tuple[int, int]) -> str:
    """Advice to use a format that a device of this compute capability has."""
    has_bfloat16 = capability >= _LEAST_CAPABILITY["bfloat16"]
    return _ALTERNATIVE[dtype if dtype != "float8" or has_bfloat16 else "bfloat16"]


def _parse_version(text: str) -> tuple[int, int] | None:
    """`8.6` -> (8, 6); None for anything else."""
    major, dot, minor = text.partition(".")
    return (int(major), int(minor)) if dot and major.isdecimal() and minor.isdecimal() else None
