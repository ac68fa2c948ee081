"""A machine as a TOML file that `machine.load` reads."""

from __future__ import annotations

from typing import Any

import msgspec

from trainyard.formats import toml
from trainyard.machine import Machine


def write(machine: Machine, says: str) -> str:
    """As TOML that `load` reads. `says`: a line at its head."""
    plain = msgspec.to_builtins(machine)
    lines = [f"# {says}", ""]
    tables: list[tuple[str, dict[str, Any]]] = []

    def put(table: dict[str, Any], path: str) -> None:
        """What is no table of tables stands before those."""
        inner = {key: value for key, value in table.items() if isinstance(value, dict) and "source" not in value}
        lines.extend(toml.line(key, value) for key, value in table.items() if key not in inner and value is not None)
        tables.extend((f"{path}{toml.key(key)}", value) for key, value in inner.items() if value)

    put(plain, "")
    while tables:
        path, table = tables.pop(0)
        lines.extend(["", f"[{path}]"])
        put(table, f"{path}.")
    return "\n".join(lines) + "\n"
