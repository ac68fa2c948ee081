"""Which rows fit constants, which set prediction intervals and which only judge: reads sources.toml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from trainyard.formats import toml
from trainyard.machine import Claim

_FILE = Path(__file__).parent / "sources.toml"


class SourceMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a machine of a source differs from trainyard's file. `per_node`: devices per node, 0 if as in the file;
    `bandwidth`: of the device's memory, if another; `power`: limit of a device, if it is lower; `sustained`: rates of
    large matrix products that the source measured, by dtype."""

    per_node: int = 0
    bandwidth: Claim | None = None
    power: Claim | None = None
    sustained: dict[str, Claim] = {}


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source of published rows, as documented in sources.toml."""

    name: str
    owner: str
    role: Literal["fit", "judge"]
    reason: str
    software: str = ""
    states: dict[str, float] = {}
    machines: dict[str, SourceMachine] = {}


@cache
def _listed() -> dict[str, Source]:
    entries = msgspec.convert(toml.loads(_FILE.read_text("utf-8"))["sources"], list[Source])
    return {entry.name: entry for entry in entries}


def source(name: str) -> Source:
    """The entry of a source; one that is not listed judges, and is an owner of its own."""
    return _listed().get(name) or Source(name=name, owner=name, role="judge", reason="")
