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
from typing import Generic, NamedTuple, TypeVar

import msgspec

from trainyard.errors import EnvironmentFailed
from trainyard.events import Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.align.cross_rank import RankAgreement, Window, agree, numbered
from trainyard.trace.align.survey import Survey, survey
from trainyard.trace.measure import (
    MeasuredTrace,
    Prepared,
    RankTrace,
    book_rank,
    conclude,
    measure,
    prepare,
    sources,
)
from trainyard.trace.parallel import spill
from trainyard.trace.parallel.engines import engine as engine_named
from trainyard.trace.rank_files import RankFiles, Unread, check, rank_files, read_file, read_or_reason

_FEW_FILES = 16
_FEW_BYTES = 32 * 2**20


class _SurveyedRank(NamedTuple):
    """A rank that was surveyed, and the file that holds the rest of it."""

    survey: Survey
    path: Path


_Rank = TypeVar("_Rank", Events, _SurveyedRank)


def measure_files(
    paths: Sequence[Path | str],
    window: Window = "steps",
    source: str = "",
    axis: str = "",
    engine: str = "auto",
    how: ReadOptions = AS_WRITTEN,
    strict: bool = False,
) -> MeasuredTrace:
    """As `measure(read(paths))`, by one of `engines.ENGINES`. `auto`: few small files all in memory, here; others in
    processes. Of several files, those that cannot be read are left out and named in `MeasuredTrace.unread`,
    unless `strict`. Raises as `read` and `measure` do."""
    named = rank_files([Path(path).absolute() for path in paths])
    readable = named.readable
    if not readable:
        check(0, named.unread, (), strict)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if engine == "auto":
        if len(readable) == 1 or (len(readable) <= _FEW_FILES and _size(readable) <= _FEW_BYTES):
            events = _readable(named, [read_or_reason(partial(read_file, how=how), path) for path in readable])
            check(len(events.ranks), events.unread, _cut(events.ranks), strict)
            return measure(events.ranks, window, source, axis, events.places)._replace(unread=events.unread)
        engine = "processes" if cores > 1 else "serial"
    # The folder goes when the last one who can look into it does.
    folder = tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True)
    place = Path(folder.name)
    with engine_named(engine, min(cores, len(readable))) as run:
        surveyed = _readable(named, run(partial(_survey_file, place, axis, how), list(enumerate(readable))))
        check(len(surveyed.ranks), surveyed.unread, _cut([kept.survey.facts for kept in surveyed.ranks]), strict)
        kept = _in_order(surveyed.ranks, surveyed.places)
        agreed = agree([one.survey for one in kept], window, axis)
        booked = run(_book_file, [(one.path, share) for one, share in zip(kept, agreed.shares)])

    def ranks(number: int, _: object = folder) -> RankTrace:
        return spill.load(booked[number], RankTrace)

    facts = [one.survey.facts for one in kept]
    measured = conclude(spill.SpilledItems(len(booked), ranks), agreed, window, source or sources(facts))
    return measured._replace(unread=surveyed.unread)


class _Readable(NamedTuple, Generic[_Rank]):
    """The ranks of the files that could be read, the place of each among all files, and the other files."""

    ranks: list[_Rank]
    places: list[int]
    unread: tuple[Unread, ...]


def _readable(named: RankFiles, results: Sequence[Sequence[_Rank] | Unread]) -> _Readable[_Rank]:
    """Sorts out what reading each of the readable files gave. A file that could not be read takes one place."""
    by_path: dict[Path, Sequence[_Rank] | Unread] = dict(zip(named.readable, results))
    by_path |= {file.path: file for file in named.unread}
    ranks: list[_Rank] = []
    places: list[int] = []
    unread: list[Unread] = []
    for path in named.files:
        result = by_path[path]
        if isinstance(result, Unread):
            unread.append(result)
        else:
            places.extend(range(len(ranks) + len(unread), len(ranks) + len(unread) + len(result)))
            ranks.extend(result)
    return _Readable(ranks, places, tuple(unread))


def _cut(facts: Sequence[Events]) -> list[str]:
    return [events.source for events in facts if events.cut_short]


def _size(named: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in named if path.is_file())


def _in_order(kept: Sequence[_SurveyedRank], places: Sequence[int]) -> list[_SurveyedRank]:
    """By rank, numbered."""
    by_rank = dict(zip(numbered([one.survey.facts for one in kept], places), kept))
    made = []
    for rank in sorted(by_rank):
        own = by_rank[rank].survey
        facts = msgspec.structs.replace(own.facts, rank=rank)
        made.append(by_rank[rank]._replace(survey=own._replace(facts=facts)))
    return made


def _survey_file(folder: Path, axis: str, how: ReadOptions, task: tuple[int, Path]) -> list[_SurveyedRank] | Unread:
    """In a worker: one file's ranks, kept in `folder`, or why it cannot be read."""
    number, path = task
    if not folder.is_dir():
        raise EnvironmentFailed(
            f"{folder} is not there on {socket.gethostname()}.", "Point TMPDIR at a folder that all hosts share."
        )
    read = read_or_reason(partial(read_file, how=how), path)
    if isinstance(read, Unread):
        return read
    kept = []
    for events in read:
        made = prepare(msgspec.structs.replace(events, axis=axis))
        file = folder / f"{number}-{len(kept)}.prepared"
        spill.save(file, made)
        kept.append(_SurveyedRank(survey(made.events, made.classified, made.keys), file))
    return kept


def _book_file(task: tuple[Path, RankAgreement]) -> Path:
    """In a worker: one rank's file to the file of what was booked."""
    path, share = task
    booked = path.with_suffix(".booked")
    spill.save(booked, book_rank(spill.load(path, Prepared), share))
    path.unlink()
    return booked
