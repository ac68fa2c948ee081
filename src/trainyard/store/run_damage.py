"""Detects missing and altered files in a run's folder.

The record (run.json, job.toml, ledgers.json, samples/) is the source of every figure: each of its files is compared
with its digest, and a run with a missing or altered file is `damaged`. Evidence (traces, facts, logs, ...) may be
deleted to save space; here only its absence is reported, and its digests are compared when the run is pushed or pulled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from trainyard import units
from trainyard.errors import BadFile
from trainyard.formats.regular_files import is_regular
from trainyard.record import Run
from trainyard.store import digests
from trainyard.store import run_folder as folders

RESTORE = "Copy its folder back from a backup, or delete the run and pull it again: `trainyard runs pull RUN`."
_MAX_REASONS = 3


def mark_damage(folder: Path, run: Run) -> Run:
    """`run`, as read from the folder, in the state `damaged` if files of its record are missing or altered.

    The reasons are then its failure.
    """
    reasons = list(_find_damage(folder, run))
    return _as_damaged(run, join_reasons(reasons)) if reasons else run


def read_any(folder: Path) -> Run:
    """Read a run as far as it is readable: `damaged`, with the reasons as its failure, if parts cannot be read or were
    altered.

    Raises `BadFile` if run.json cannot be read.
    """
    run, reasons = folders.read_head(folder), list[str]()
    try:
        run = msgspec.structs.replace(run, ledgers=folders.read_ledgers(folder))
    except BadFile as error:
        reasons.append(error.message.removesuffix("."))
    try:
        run = msgspec.structs.replace(run, samples=tuple(folders.read_samples(folder)))
    except BadFile as error:
        reasons.append(error.message.removesuffix("."))
    return _as_damaged(run, join_reasons(reasons)) if reasons else mark_damage(folder, run)


def _as_damaged(run: Run, reason: str) -> Run:
    """`run` in the state `damaged`, with `reason` and an earlier failure as its failure."""
    failure = f"{reason}. It had failed before: {run.failure}" if run.failure else reason
    return msgspec.structs.replace(run, state="damaged", failure=failure)


def missing_evidence(folder: Path) -> list[str]:
    """The evidence files (those outside the record) that existed when the run ended and are now missing."""
    try:
        recorded = folders.read_digests(folder) or {}
    except BadFile:  # that is damage to the record
        return []
    return [name for name in recorded if not is_record(name) and not is_regular(folder / name)]


def join_reasons(reasons: list[str]) -> str:
    """The reasons as one text, the first three in full and the number of others."""
    return units.listed(reasons, _MAX_REASONS, between="; ")


def is_record(name: str) -> bool:
    return name in (digests.HEAD, "job.toml", "ledgers.json") or name.startswith("samples/")


def _find_damage(folder: Path, run: Run) -> Iterator[str]:
    """Yield a phrase for each file of the run's record that is missing or altered; nothing if it is intact."""
    if run.state == "incomplete":  # its samples are still being written
        yield from (f"{name} is missing" for name in ("job.toml", "samples") if not (folder / name).exists())
        return
    try:
        recorded = folders.read_digests(folder)
    except BadFile as error:
        yield error.message.removesuffix(".")
        return
    if recorded is not None:
        yield from _compare_digests(folder, recorded)
    else:  # written by an earlier version
        yield from _find_older_damage(folder, run)


def _compare_digests(folder: Path, recorded: dict[str, str]) -> Iterator[str]:
    """Yield the record files that are missing, altered or added, against `recorded`: file name -> SHA-256 digest."""
    for name in filter(is_record, recorded):
        if not is_regular(folder / name):
            yield f"{name} is missing"
        elif digests.file_digest(folder / name) != recorded[name]:
            yield f"{name} was altered after it was written"
    for path in folders.sample_files(folder):
        if f"samples/{path.name}" not in recorded:
            yield f"samples/{path.name} was added after the run ended"


def _find_older_damage(folder: Path, run: Run) -> Iterator[str]:
    """Yield a phrase for each missing or altered file of a run of an earlier version, which has one digest over job,
    samples and ledgers, so that it does not show which of them was altered."""
    missing = [name for name in ("job.toml", "ledgers.json") if not is_regular(folder / name)]
    if missing:
        yield from (f"{name} is missing" for name in missing)
    elif not run.digest or folders.digest(folder) != run.digest:
        if not folders.sample_files(folder) and run.state == "complete":
            yield "samples/rank0.jsonl is missing"
        elif run.digest:
            yield "job.toml, samples or ledgers.json were altered after they were written"
