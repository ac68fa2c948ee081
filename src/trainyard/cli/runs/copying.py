"""Copies runs one after the other for `trainyard runs push` and `pull`, and prints the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainyard import units
from trainyard.cli.support.output import print_json, say
from trainyard.errors import BadInput, EnvironmentFailed
from trainyard.store.stored_changes import CopiedRun, CopiedRuns, RefusedRun


def copy_runs(copies: Mapping[str, Callable[[], CopiedRun]], done: str, as_json: bool) -> None:
    """Copies each run, and prints the result. `copies`: id -> function that copies the run. `done`: the end of the
    message, such as `pushed to s3://bucket/runs`.

    Raises at the end if a run was not copied, or was copied without its tags: `EnvironmentFailed` if the environment
    caused a failed copy, else `BadInput`. With a single run, a failed copy raises its own error.
    """
    copied: list[CopiedRun] = []
    errors_by_id: dict[str, BadInput | EnvironmentFailed] = {}
    for id, copy in copies.items():
        try:
            copied.append(copy())
        except (BadInput, EnvironmentFailed) as error:
            errors_by_id[id] = error
            if len(copies) > 1:
                say(f"not copied: {error}")
    if as_json:
        reasons = tuple(RefusedRun(id=id, error=str(error)) for id, error in errors_by_id.items())
        print_json(CopiedRuns(runs=tuple(copied), refused=reasons))
    else:
        _show_copied(copied, len(copies), done)
    _raise_refusal(errors_by_id, untagged=[run.id for run in copied if run.problem], count=len(copies))


def _raise_refusal(
    errors_by_id: Mapping[str, BadInput | EnvironmentFailed], untagged: Sequence[str], count: int
) -> None:
    """Raise an error if runs were not copied, or without their tags. `count`: number of runs to copy. `errors_by_id`:
    of the runs not copied; `untagged`: ids of those copied without their tags."""
    if count == 1 and errors_by_id:
        raise next(iter(errors_by_id.values()))
    of_all = f"of {units.counted(count, 'run')}"
    if errors_by_id:
        kind = EnvironmentFailed if any(isinstance(e, EnvironmentFailed) for e in errors_by_id.values()) else BadInput
        raise kind(f"Not copied: {len(errors_by_id)} {of_all}: {', '.join(errors_by_id)}.")
    if untagged:
        raise BadInput(f"Copied without their tags: {len(untagged)} {of_all}: {', '.join(untagged)}.")


def _show_copied(copied: Sequence[CopiedRun], count: int, done: str) -> None:
    """Prints a line for each run with its files, signature and notes, then the sum. `count`: runs requested; `done`:
    as in `copy_runs`. `copied`: the runs that were copied."""
    for run in copied:
        signature = f", signed by {run.signer}" if run.signer else ", signed" if run.signed else ""
        if run.files:
            say(f"run {run.id}: {units.counted(run.files, 'file')}, {units.show_size(run.bytes)}{signature}")
        elif signature:
            say(f"run {run.id}: already there{signature}")
        for note in filter(None, (*run.notes, run.problem)):
            say(f"run {run.id}: {note}")
    new_count = sum(1 for run in copied if run.files)
    present_note = f", {len(copied) - new_count} already there" if new_count < len(copied) else ""
    signatures = sum(run.signed for run in copied)
    signed_note = f", {signatures} signed" if signatures else ""
    say(f"{new_count} of {units.counted(count, 'run')} {done}{present_note}{signed_note}.")
