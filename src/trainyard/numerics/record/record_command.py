"""Run a command once for each variant of a record."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from trainyard.errors import BadInput, CommandFailed
from trainyard.inject.python_path import python_path
from trainyard.numerics.bisect.swap import Swap
from trainyard.numerics.record.record_process import FOLDER, REQUEST, RecordRequest
from trainyard.numerics.record_files import read_variant
from trainyard.numerics.tensor_record import Level
from trainyard.redact import redact_command

JITTER_ULP = 2.0
"""Largest number of units in the last place by which replicas move each result."""


class RecordedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and extent of one run of the command. `records`: of all ranks; `size`: bytes of the files."""

    variant: str
    ranks: int
    records: int
    seconds: float
    size: int


class RecordReport(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a record. `folder`: of the record."""

    schema: Literal["trainyard/numerics-record/1"] = "trainyard/numerics-record/1"
    folder: str
    runs: tuple[RecordedVariant, ...]


class RecordOptions(NamedTuple):
    """The extent of a record. `replicas`: number of jittered runs; with 0, only the plain run is recorded, without a
    float64 reference. `steps`: from 0. `swap`: computes modules in another way than the command does."""

    steps: Sequence[int] = (0, 1, 2)
    level: Level = "operations"
    replicas: int = 4
    most_elements: int = 0
    swap: Swap | None = None


def variant_names(replicas: int) -> list[str]:
    """The variants of a record: the command as it is, and with replicas also in float64 and jittered."""
    return ["plain", *(["float64"] if replicas else []), *(f"replica-{number}" for number in range(1, replicas + 1))]


def record_command(
    command: Sequence[str],
    folder: Path,
    options: RecordOptions,
    say: Callable[[str], object] = lambda text: None,
) -> RecordReport:
    """Runs `command` once for each variant and writes the tensors of every Python process with a training step to
    `folder`. The command's output goes to stderr. Raises `BadInput` if the command cannot be found or no step was seen,
    and `CommandFailed` if it fails."""
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder} is not empty.", "Pass a new folder.")
    recorded: list[RecordedVariant] = []
    for number, variant in enumerate(variant_names(options.replicas)):
        request = RecordRequest(
            variant=variant,
            steps=tuple(options.steps),
            level=options.level,
            most_elements=options.most_elements,
            jitter_ulp=JITTER_ULP if variant.startswith("replica") else 0.0,
            seed=number,
            command=tuple(redact_command(command)),
            swap=options.swap,
        )
        began = time.monotonic()
        run_recorded(command, folder, request)
        seconds = time.monotonic() - began
        if not (folder / variant).is_dir():
            raise BadInput(
                f"{shlex.join(redact_command(command))} succeeded, but no step was seen: no torch.optim optimizer "
                "stepped in a Python that has trainyard installed.",
                "Run it with a Python that has trainyard.",
            )
        ranks = read_variant(folder, variant)
        size = sum(path.stat().st_size for path in (folder / variant).iterdir())
        records = sum(len(rank.tensors) for rank in ranks)
        recorded.append(
            RecordedVariant(variant=variant, ranks=len(ranks), records=records, seconds=round(seconds, 2), size=size)
        )
        say(f"{variant}: {records:,} tensors of {len(ranks)} ranks, {seconds:.1f} s, {size / 1e6:.1f} MB")
    return RecordReport(folder=str(folder), runs=tuple(recorded))


def run_recorded(command: Sequence[str], folder: Path, request: RecordRequest) -> None:
    """Runs a command whose Python processes are recorded into `folder`; its output goes to stderr. Raises `BadInput` if
    it cannot be found, `CommandFailed` if it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(f"there is no command {command[0]!r}.", "Commands are looked up on the PATH.")
    variables = {
        "PYTHONPATH": python_path(os.environ),
        FOLDER: str(folder.absolute()),
        REQUEST: msgspec.json.encode(request).decode(),
    }
    code = subprocess.run([program, *command[1:]], stdout=2, env={**os.environ, **variables}, check=False).returncode
    if code:
        raise CommandFailed(
            f"the command failed with exit code {code} while the variant {request.variant!r} was recorded.",
            "Its output is above. If only this variant fails, record with --replicas 0.",
        )
