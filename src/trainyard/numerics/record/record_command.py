"""Run a command once for each variant of a record."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadInput, CommandFailed
from trainyard.inject.run_watched import run_watched
from trainyard.numerics.record.record_process import ENVIRONMENT, FOLDER, REQUEST, RecordRequest
from trainyard.numerics.record_files import count_records, rank_files
from trainyard.numerics.record_state import (
    RecordedVariant,
    RecordOptions,
    begin_record,
    lock_record,
    origin_of,
    variant_names,
    write_state,
)
from trainyard.numerics.tensor_record import RecordHeader
from trainyard.redact import HIDDEN, redact_command

JITTER_ULP = 2.0
"""Largest number of units in the last place by which replicas move each result."""


class RecordReport(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a record. `folder`: of the record."""

    schema: Literal["trainyard/numerics-record/1"] = "trainyard/numerics-record/1"
    folder: str
    runs: tuple[RecordedVariant, ...]


def record_command(
    command: Sequence[str],
    folder: Path,
    options: RecordOptions,
    say: Callable[[str], object] = lambda text: None,
) -> RecordReport:
    """Runs `command` once for each variant and writes the tensors of every Python process with a training step to
    `folder`. If the folder has a record of the same command and options, complete runs of it are kept, whatever the
    number of replicas was, and others are repeated. The command's output goes to stderr.

    Returns all runs of the record. Raises `BadInput` if the command cannot be found, no step was seen, or the folder
    has a record of another command or other options, and `CommandFailed` if the command fails.
    """
    _find_program(command)
    origin = origin_of(
        redact_command(command), options, {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    )
    with lock_record(folder) as lock:
        state = begin_record(folder, origin, options.replicas)
        if state.runs:
            say(f"complete, and kept: {', '.join(run.variant for run in state.runs)}")
        for number, variant in enumerate(variant_names(options.replicas)):
            if variant not in state.missing:
                continue
            request = RecordRequest(
                variant=variant,
                steps=tuple(options.steps),
                level=options.level,
                most_elements=options.most_elements,
                jitter_ulp=JITTER_ULP if variant.startswith("replica") else 0.0,
                seed=number,
                command=origin.command,
                swap=options.swap,
            )
            run = _record_variant(command, folder, request, lock)
            state = replace(state, runs=(*state.runs, run))
            write_state(folder, state)
            extent = f"{run.records:,} tensors of {run.ranks} ranks"
            say(f"{variant}: {extent}, {run.seconds:.1f} s, {run.size / 1e6:.1f} MB")
    return RecordReport(folder=str(folder), runs=state.runs)


def _record_variant(command: Sequence[str], folder: Path, request: RecordRequest, lock: int) -> RecordedVariant:
    """Runs the command for one variant. `lock`: file descriptor of the lock of the folder."""
    began = time.monotonic()
    run_recorded(command, folder, request, [lock])
    seconds = time.monotonic() - began
    if not (folder / request.variant).is_dir():
        raise BadInput(
            f"{shlex.join(redact_command(command))} succeeded, but no step was seen: no torch.optim optimizer "
            "stepped in a Python that has trainyard installed.",
            "Run it with a Python that has trainyard.",
        )
    return RecordedVariant(
        variant=request.variant,
        ranks=len(rank_files(folder / request.variant)),
        records=count_records(folder, request.variant),
        seconds=round(seconds, 2),
        size=sum(path.stat().st_size for path in rank_files(folder / request.variant).values()),
    )


def run_recorded(command: Sequence[str], folder: Path, request: RecordRequest, inherited: Collection[int] = ()) -> None:
    """Runs a command whose Python processes are recorded into `folder`; its output goes to stderr. `inherited`: file
    descriptors that stay open in the command. Raises `BadInput` if it cannot be found, `CommandFailed` if it fails."""
    program = _find_program(command)
    variables = {FOLDER: str(folder.absolute()), REQUEST: msgspec.json.encode(request).decode()}
    code = run_watched([program, *command[1:]], variables, inherited)
    if code:
        raise CommandFailed(f"the command failed with exit code {code} {_purpose(request)}", "Its output is above.")


def repeat_command(header: RecordHeader, folder: Path, request: RecordRequest, say: Callable[[str], object]) -> None:
    """Runs the command of a record as `run_recorded` does. Raises `BadInput`, too, if it is not in the record as it
    was."""
    command = header.command
    if not command or any(HIDDEN in word for word in command):
        raise BadInput(
            f"the command of the record cannot be repeated: {shlex.join(command) or 'it is not in the record'}.",
            "Record a command without secrets; pass them in environment variables.",
        )
    say(f"repeats {shlex.join(command)}")
    run_recorded(command, folder, request)


def _purpose(request: RecordRequest) -> str:
    """The reason for which a command was run, and the next step if it fails for that reason only."""
    if request.store:
        return "while its values were stored. It must run in the folder in which it was recorded."
    if request.capture is not None:
        return "while its operations were captured. It must run in the folder in which it was recorded."
    if request.check is not None:
        return "while its operations were checked. It must succeed without trainyard."
    if request.variant == "plain":
        return "while it was recorded. It must succeed without trainyard."
    return f"while the variant {request.variant!r} was recorded. If only this variant fails, record with --replicas 0."


def _find_program(command: Sequence[str]) -> str:
    """The path of the program of a command. Raises `BadInput`."""
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(f"there is no command {command[0]!r}.", "Commands are looked up on the PATH.")
    return program
