"""What two runs differ in beside their figures: what was asked of them, and what their provenance says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from trainyard.errors import UnknownName, nearest
from trainyard.job import SCRIPT
from trainyard.record import Run

KINDS = {
    "command": "what was run, where it is a script",
    "layout": "how the job is laid out",
    "recipe": "how it is trained",
    "measure": "what was timed and profiled",
    "code": "the revision, and whether the tree was dirty",
    "torch": "how torch was built",
    "driver": "the devices' driver",
    "devices": "what the devices are",
    "host": "the machine itself",
    "environment": "variables that change how training runs",
    "packages": "versions of what is installed",
}
"""Kinds of difference -> what they are, in the order that they are said."""
ABSENT = "absent"


class Difference(NamedTuple):
    kind: str
    key: str
    was: str
    now: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.key}".rstrip()


def differences(before: Run, after: Run) -> list[Difference]:
    """In the order of `KINDS`, then by key. Clocks and power, which no two runs have alike, are not among them."""
    found: list[Difference] = []
    if command(before) != command(after):
        found.append(Difference("command", "", command(before), command(after)))
    if before.job.layout != after.job.layout:
        found.append(Difference("layout", "", str(before.job.layout), str(after.job.layout)))
    was, now = _facts(before), _facts(after)
    for kind in was:
        found.extend(_of(kind, was[kind], now[kind]))
    return found


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises `UnknownName` for what is no kind of difference."""
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName(f"--across {kind}: there is no such difference.", nearest(kind, KINDS))


def command(run: Run) -> str:
    """What was run: a script's command line, or a job's name."""
    return str(run.job.sizes.get("command", "")) if run.job.workload == SCRIPT else f"job {run.job.name}"


def _facts(run: Run) -> dict[str, Mapping[str, Any]]:
    about = run.provenance
    return {
        "recipe": msgspec.to_builtins(run.job.recipe), "measure": msgspec.to_builtins(run.job.measure),
        "code": about.code, "torch": about.torch_build, "driver": about.driver,
        "devices": {f"{one.vendor}.{one.index}": one.name for one in about.devices},
        "host": about.host, "environment": about.environment, "packages": about.packages,
    }  # fmt: skip


def _of(kind: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    keys = list(was) if kind == "recipe" else sorted({*was, *now})
    for key in keys:
        if was.get(key) != now.get(key):
            yield Difference(kind, key, str(was.get(key, ABSENT)), str(now.get(key, ABSENT)))
