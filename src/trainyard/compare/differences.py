"""Differences between two runs in their jobs and their provenance (not in their measured figures)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from trainyard.errors import UnknownName, nearest
from trainyard.job import SCRIPT
from trainyard.record import Run

KINDS = {
    "command": "the command line of a script, or the job's name",
    "layout": "the parallelism layout of the job",
    "recipe": "the training settings",
    "measure": "the steps that were timed and profiled",
    "code": "the revision, and whether the tree was dirty",
    "torch": "the torch build",
    "driver": "the device driver",
    "devices": "the devices",
    "host": "the machine",
    "environment": "environment variables that affect training",
    "packages": "versions of the installed packages",
}
"""Kind of difference -> its description, in the order in which they are reported."""
ABSENT = "absent"


class Difference(msgspec.Struct, frozen=True):
    """A setting that differs between two runs. `kind`: a key of `KINDS`; `key`: its name within the kind, empty if the
    kind is a single value; `before`, `after`: its values, as text."""

    kind: str
    key: str
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.key}".rstrip()


def find_differences(before: Run, after: Run) -> list[Difference]:
    """Differences in the order of `KINDS`, then by key. Clocks and power, which differ between any two runs, are
    excluded."""
    result: list[Difference] = []
    if describe_command(before) != describe_command(after):
        result.append(
            Difference(kind="command", key="", before=describe_command(before), after=describe_command(after))
        )
    if before.job.layout != after.job.layout:
        result.append(Difference(kind="layout", key="", before=str(before.job.layout), after=str(after.job.layout)))
    old, new = collect_facts(before), collect_facts(after)
    for kind in old:
        result.extend(_compare_facts(kind, old[kind], new[kind]))
    return result


def check_kinds(kinds: Iterable[str]) -> None:
    """Raises `UnknownName` if one of `kinds` is not in `KINDS`."""
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName(f"--across {kind}: {kind!r} is not a kind of difference.", nearest(kind, KINDS))


def describe_command(run: Run) -> str:
    """A script's command line, or `job NAME`."""
    return str(run.job.sizes.get("command", "")) if run.job.workload == SCRIPT else f"job {run.job.name}"


def collect_facts(run: Run) -> dict[str, Mapping[str, Any]]:
    """Kind of difference, a key of `KINDS` -> the run's values of that kind by key."""
    provenance = run.provenance
    return {
        "recipe": msgspec.to_builtins(run.job.recipe),
        "measure": msgspec.to_builtins(run.job.measure),
        "code": provenance.code,
        "torch": provenance.torch_build,
        "driver": provenance.driver,
        "devices": {f"{device.vendor}.{device.index}": device.name for device in provenance.devices},
        "host": provenance.host,
        "environment": provenance.environment,
        "packages": provenance.packages,
    }


def _compare_facts(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Yields the keys whose values differ; `ABSENT` for a key that one run does not have."""
    keys = list(old) if kind == "recipe" else sorted({*old, *new})
    for key in keys:
        if old.get(key) != new.get(key):
            yield Difference(kind=kind, key=key, before=str(old.get(key, ABSENT)), after=str(new.get(key, ABSENT)))
