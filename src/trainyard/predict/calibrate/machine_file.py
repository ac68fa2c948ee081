"""A machine as a TOML file that `machine.load` reads."""

from __future__ import annotations

import msgspec

from trainyard.formats import toml
from trainyard.machine import Machine


def write(machine: Machine, comment: str) -> str:
    """As TOML that `load` reads, after `comment`. The source of each figure is a value of the document."""
    return toml.dumps(msgspec.to_builtins(machine), comment)
