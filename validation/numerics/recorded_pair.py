"""Records two commands with `trainyard numerics record` and compares them with `trainyard numerics compare`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from validation.numerics.fault import Location

TRAINYARD = str(Path(sys.executable).parent / "trainyard")
TIMEOUT_S = 1800
_VERDICTS = {0, 1, 3}
"""Exit codes of a comparison: 0 same, 1 different, 3 not enough evidence."""


class CommandFailed(Exception):
    """A command of a trial failed; the message has the end of its output."""


class Comparison(msgspec.Struct, frozen=True):
    """Result of a comparison. `location`: the first tensor that differs; all of its fields are empty if none does.
    `causes`: the operations that only one side computes and from which that tensor follows, in the same phase.
    `undetectable`: the share of the compared tensors that rounding makes useless."""

    verdict: str
    location: Location
    causes: tuple[Location, ...]
    undetectable: float
    seconds: float

    @property
    def alarm(self) -> bool:
        return self.verdict == "different"


def record(folder: Path, command: Sequence[str], *, plain: bool) -> float:
    """Records a command. `plain`: only the program as it is, as the suspect side needs. Returns the seconds."""
    replicas = ["--replicas", "0"] if plain else []
    return _run([TRAINYARD, "numerics", "record", "--out", str(folder), *replicas, "--", *command], {0})[1]


def compare(reference: Path, suspect: Path) -> Comparison:
    """Compares two recordings."""
    command = [TRAINYARD, "numerics", "compare", str(reference), str(suspect), "--json"]
    output, seconds = _run(command, _VERDICTS)
    return read_comparison(msgspec.json.decode(output), seconds)


def reproduce(reference: Path, suspect: Path, script: Path) -> str:
    """The outcome of a reproducer of the first difference: `random inputs` or `captured inputs` if it shows the fault,
    `not shown`, or the reason for which there is none."""
    command = [TRAINYARD, "numerics", "reproduce", str(reference), str(suspect), "--out", str(script), "--rerun"]
    try:
        output, _ = _run([*command, "--json"], {0, 1})
    except CommandFailed as failure:
        message = re.search(r"error \[[\w-]+\]: (.*)", str(failure))
        return message[1] if message else str(failure).splitlines()[-1]
    result = msgspec.json.decode(output)
    return f"{result['inputs']} inputs" if result["shows_fault"] else result["failure"][-200:] or "not shown"


class DifferingParts(msgspec.Struct, frozen=True):
    """Parts of a training that differ if they start from the values of the other run. `locations`: their first tensors.
    `reason`: why none was found."""

    names: tuple[str, ...]
    locations: tuple[Location, ...]
    reason: str
    seconds: float


def find_parts(reference: Path, suspect: Sequence[str], folder: Path) -> DifferingParts:
    """Bisects a command by the values of a recorded one."""
    options = ["--swap", "outputs", "--out", str(folder), "--rerun", "--json"]
    began = time.monotonic()
    try:
        output, _ = _run([TRAINYARD, "numerics", "bisect", str(reference), *options, "--", *suspect], {0, 1})
    except CommandFailed as failure:
        message = re.search(r"error \[not-enough-evidence\]: (.*)", str(failure))
        if message is None:
            raise
        return DifferingParts((), (), message[1], round(time.monotonic() - began, 1))
    result = msgspec.json.decode(output)
    return DifferingParts(
        names=tuple(cause["name"] for cause in result["causes"]),
        locations=tuple(_read_location(trial["first"]) for trial in result["trials"]),
        reason="",
        seconds=round(time.monotonic() - began, 1),
    )


def read_comparison(report: dict[str, Any], seconds: float) -> Comparison:
    """The result in the JSON document of a comparison (`RecordComparison`)."""
    counts = report["counts"]
    compared = sum(counts[status] for status in ("identical", "within_rounding", "different", "undetectable"))
    return Comparison(
        verdict=report["verdict"],
        location=_read_location(report["first"]),
        causes=_read_causes(report["first"]),
        undetectable=round(counts["undetectable"] / max(compared, 1), 4),
        seconds=round(seconds, 2),
    )


def _read_location(divergence: dict[str, Any] | None) -> Location:
    if divergence is None:
        return Location()
    tensor = divergence["tensor"]
    return Location(
        step=tensor["step"],
        phase=tensor["phase"],
        module=tensor["module"],
        operation=tensor["operation"],
        role=tensor["role"],
        line=tensor["location_a"] or tensor["location_b"],
        kind=divergence["kind"],
    )


def _read_causes(divergence: dict[str, Any] | None) -> tuple[Location, ...]:
    if divergence is None:
        return ()
    tensor = divergence["tensor"]
    return tuple(
        Location(
            step=tensor["step"],
            phase=tensor["phase"],
            module=cause["module"],
            operation=cause["operation"],
            role="output",
            line=cause["location"],
            kind=divergence["kind"],
        )
        for cause in divergence["causes"]
    )


def _run(command: Sequence[str], codes: set[int]) -> tuple[bytes, float]:
    """Runs a command. Returns its output and the seconds; its exit code must be one of `codes`."""
    began = time.monotonic()
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    if result.returncode not in codes:
        end = result.stderr.decode(errors="replace").strip()[-2000:]
        raise CommandFailed(f"{' '.join(command)}: exit code {result.returncode}: {end}")
    return result.stdout, time.monotonic() - began
