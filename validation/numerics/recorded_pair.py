"""Records two commands with `trainyard numerics record` and compares them with `trainyard numerics compare`."""

from __future__ import annotations

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
_DIFFERS = 1
"""Exit code of a comparison with an alarm; 0: none."""


class CommandFailed(Exception):
    """A command of a trial failed; the message has the end of its output."""


class Comparison(msgspec.Struct, frozen=True):
    """Result of a comparison. `location`: the first tensor that differs; all of its fields are empty without alarm."""

    alarm: bool
    location: Location
    seconds: float


def record(folder: Path, command: Sequence[str], *, plain: bool) -> float:
    """Records a command. `plain`: only the program as it is, as the suspect side needs. Returns the seconds."""
    variants = ["--variants", "plain"] if plain else []
    return _run([TRAINYARD, "numerics", "record", "--out", str(folder), *variants, "--", *command], {0})[1]


def compare(reference: Path, suspect: Path) -> Comparison:
    """Compares two recordings."""
    command = [TRAINYARD, "numerics", "compare", str(reference), str(suspect), "--json"]
    output, seconds, code = _run(command, {0, _DIFFERS})
    return Comparison(code == _DIFFERS, read_location(msgspec.json.decode(output)), round(seconds, 2))


def read_location(report: dict[str, Any]) -> Location:
    """The first tensor that differs, from the JSON document of a comparison."""
    first = report.get("first")
    if first is None:
        return Location()
    return Location(
        step=first["step"],
        phase=first["phase"],
        module=first["module"],
        operation=first["operation"],
        role=first["role"],
        line=first["location"],
    )


def _run(command: Sequence[str], codes: set[int]) -> tuple[bytes, float, int]:
    """Runs a command. Returns its output, the seconds and its exit code, which must be one of `codes`."""
    began = time.monotonic()
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    if result.returncode not in codes:
        end = result.stderr.decode(errors="replace").strip()[-2000:]
        raise CommandFailed(f"{' '.join(command)}: exit code {result.returncode}: {end}")
    return result.stdout, time.monotonic() - began, result.returncode
