"""Record the tensors of a training."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.numerics.record.record_command import RecordReport, record_command
from trainyard.numerics.record_state import RecordOptions
from trainyard.numerics.tensor_record import Level

_MOST_STEPS = 100_000


def record_numerics(
    command: Sequence[str],
    out: str | Path,
    *,
    steps: str = "0-2",
    every: int = 1,
    level: Level = "operations",
    replicas: int = 4,
    most_elements: int = 0,
    say: Callable[[str], object] = lambda text: None,
) -> RecordReport:
    """Records a summary of every tensor of some training steps, for `compare_numerics`.

    `command`: a training script with its arguments, or a job file alone; it is run once as it is, and with `replicas`
    also in float64 and jittered. `out`: a new folder, or one in which the same command was recorded with the same
    options: complete runs are kept, so that an interrupted recording continues, and replicas can be added. `steps`:
    `A-B`, from 0, of which every `every`th is recorded.
    `level`: `operations`, `modules` or `steps` (gradients, weights and optimizer state only). `most_elements`: results
    of operations with more are left out; 0 for none. `say`: called with the cost of each run.

    Raises `BadInput` for a command that is not found or takes no step, or if the folder has another record,
    `CommandFailed` if the command fails, and `RunInUse` while it is being recorded into this folder.
    """
    words = run_job_command(command[0]) if is_job_file(command) else list(command)
    options = RecordOptions(
        steps=parse_steps(steps)[::every], level=level, replicas=replicas, most_elements=most_elements
    )
    return record_command(words, Path(out), options, say)


def is_job_file(command: Sequence[str]) -> bool:
    """Whether a command is a job file alone."""
    return len(command) == 1 and command[0].endswith(".toml")


def run_job_command(job: str) -> list[str]:
    """The command that runs a job file."""
    return [sys.executable, "-m", "trainyard.cli.main", "run", job]


def parse_steps(text: str) -> list[int]:
    """The steps of `A-B` or `A`. Raises `BadInput`."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first or last - first >= _MOST_STEPS:
        raise BadInput(f"steps {text!r}: not of the form A-B with A <= B.", "For example 0-2, or 100-104.")
    return list(range(first, last + 1))
