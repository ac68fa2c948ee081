"""Many ranks' files to ledgers, in parallel and in memory that does not grow with the traces.

First each file is read and classified, kept on disk, and surveyed; the surveys, which are small, settle what the ranks
have in common; then each rank is booked by itself. What was booked stays on disk and is mapped when asked for.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from trainyard.errors import EnvironmentFailed
from trainyard.plugins import AS_WRITTEN, Reading
from trainyard.trace import spill
from trainyard.trace.agree import Share, Window, agree, numbered
from trainyard.trace.engines import engine as engine_named
from trainyard.trace.measure import (
    Measured,
    Prepared,
    RankTrace,
    book_rank,
    conclude,
    files,
    measure,
    prepare,
    read,
    read_file,
    sources,
)
from trainyard.trace.survey import Survey, survey

_FEW_FILES = 16
_FEW_BYTES = 32 * 2**20


class _Kept(NamedTuple):
    """A rank that was surveyed, and the file that holds the rest of it."""

    survey: Survey
    path: Path


def measure_files(
    paths: Sequence[Path | str],
    window: Window = "steps",
    source: str = "",
    axis: str = "",
    engine: str = "auto",
    how: Reading = AS_WRITTEN,
) -> Measured:
    """As `measure(read(paths))`, by one of `engines.ENGINES`. `auto`: few small files all in memory, here; others in
    processes. Raises as `read` and `measure` do."""
    named = [path.absolute() for path in files(paths)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if engine == "auto":
        if len(named) == 1 or (len(named) <= _FEW_FILES and _size(named) <= _FEW_BYTES):
            return measure(read(named, how), window, source, axis)
        engine = "processes" if cores > 1 else "serial"
    # The folder goes when the last one who can look into it does.
    folder = tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True)
    place = Path(folder.name)
    with engine_named(engine, min(cores, len(named))) as run:
        found = run(partial(_survey_file, place, axis, how), list(enumerate(named)))
        kept = _in_order([one for of_file in found for one in of_file])
        agreed = agree([one.survey for one in kept], window, axis)
        booked = run(_book_file, [(one.path, share) for one, share in zip(kept, agreed.shares)])

    def ranks(number: int, _: object = folder) -> RankTrace:
        return spill.load(booked[number], RankTrace)

    facts = [one.survey.facts for one in kept]
    return conclude(spill.Kept(len(booked), ranks), agreed, window, source or sources(facts))


def _size(named: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in named if path.is_file())


def _in_order(kept: Sequence[_Kept]) -> list[_Kept]:
    """By rank, numbered."""
    by_rank = dict(zip(numbered([one.survey.facts for one in kept]), kept))
    made = []
    for rank in sorted(by_rank):
        own = by_rank[rank].survey
        facts = msgspec.structs.replace(own.facts, rank=rank)
        made.append(by_rank[rank]._replace(survey=own._replace(facts=facts)))
    return made


def _survey_file(folder: Path, axis: str, how: Reading, task: tuple[int, Path]) -> list[_Kept]:
    """In a worker: one file's ranks, kept in `folder`."""
    number, path = task
    if not folder.is_dir():
        raise EnvironmentFailed(
            f"{folder} is not there on {socket.gethostname()}.", "Point TMPDIR at a folder that all hosts share."
        )
    kept = []
    for events in read_file(path, how):
        made = prepare(msgspec.structs.replace(events, axis=axis))
        file = folder / f"{number}-{len(kept)}.prepared"
        spill.save(file, made)
        kept.append(_Kept(survey(made.events, made.classified, made.keys), file))
    return kept


def _book_file(task: tuple[Path, Share]) -> Path:
    """In a worker: one rank's file to the file of what was booked."""
    path, share = task
    booked = path.with_suffix(".booked")
    spill.save(booked, book_rank(spill.load(path, Prepared), share))
    path.unlink()
    return booked
