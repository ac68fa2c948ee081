"""What the runs of a gate execute: a job file or a command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.errors import BadInput
from trainyard.job_file import load

Target = str | Sequence[str]


def read_target(target: Target, *, together: bool) -> list[str]:
    """The words to run: the absolute path of a job file, so that it is found from any folder, or a command as it is,
    since each worktree has its own script. Raises `BadJob` for a bad job file, `BadInput` for one with several ranks if
    `together`."""
    words = [target] if isinstance(target, str) else list(target)
    if len(words) != 1 or not words[0].endswith(".toml"):
        return words
    job = load(Path(words[0]))
    if together and job.layout.ranks > 1:
        raise BadInput(
            f"{words[0]} has {job.layout.ranks} ranks, but --together runs both sides on one core.",
            "Use a job with one rank, or omit --together.",
        )
    return [str(Path(words[0]).absolute())]


def show_target(target: Target) -> str:
    """The words as they are typed after the options of a gate's mode."""
    return target if isinstance(target, str) else f"-- {' '.join(target)}" if len(target) > 1 else target[0]
