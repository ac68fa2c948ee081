"""Write a machine as a TOML file that `machine.load` reads."""

from __future__ import annotations

import msgspec

from trainyard.formats import toml
from trainyard.machine import Machine


def write(machine: Machine, comment: str) -> str:
    """The machine as TOML that `machine.load` reads, after `comment`. Each figure has its source as a value."""
    return toml.dumps(msgspec.to_builtins(machine), comment)
