"""Why the bits of an operation may differ from run to run, and the switch that makes them equal."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

import msgspec


class Switch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of data/nonreproducible_operations.toml."""

    operations: tuple[str, ...]
    devices: tuple[str, ...]
    reason: str
    switch: str
    source: str


def switch_for(operation: str, device: str) -> Switch:
    """The first entry for an operation, such as `aten.mm`, on a device: `cpu`, or the name of an accelerator."""
    kind = "cpu" if device == "cpu" else "cuda"
    return next(
        entry
        for entry in _entries()
        if any(kind.startswith(device) for device in entry.devices)
        and any(fnmatchcase(operation, pattern) for pattern in entry.operations)
    )


@cache
def _entries() -> tuple[Switch, ...]:
    text = files("trainyard.data").joinpath("nonreproducible_operations.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text)["entry"], tuple[Switch, ...])
