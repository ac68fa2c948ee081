"""Profiler files -> ledgers: read -> classify -> agree -> book -> conclude, for one or many ranks of one job.

Few small files are measured in memory. Of others each is read and classified in a worker process, kept on disk, and
surveyed; the surveys, which are small, settle what the ranks have in common; then each rank is booked by itself. What
was booked stays on disk and is mapped when asked for, so that memory does not grow with the traces.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from trainyard.errors import EnvironmentFailed
from trainyard.events import Events
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.align.cross_rank import RankAgreement, Window, agree
from trainyard.trace.align.survey import Survey, survey
from trainyard.trace.booking.book_rank import ClassifiedRank, RankTrace, book_rank, classify_rank
from trainyard.trace.measured_trace import MeasuredTrace, conclude
from trainyard.trace.parallel import spill
from trainyard.trace.parallel.engines import engine as engine_named
from trainyard.trace.rank_files import Unread, check, rank_files, read_file, read_or_reason
from trainyard.units import listed

_FEW_FILES = 16
_FEW_BYTES = 32 * 2**20
_Rank = TypeVar("_Rank")


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
    files = rank_files([Path(path).absolute() for path in paths])
    readable = [file for file in files if isinstance(file, Path)]
    if not readable:
        check(0, [file for file in files if isinstance(file, Unread)], (), strict)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if engine == "auto":
        if len(readable) == 1 or (len(readable) <= _FEW_FILES and _size(readable) <= _FEW_BYTES):
            traces, places, unread = _sorted_out(files, [read_or_reason(path, how) for path in readable])
            check(len(traces), unread, _cut(traces), strict)
            return measure(traces, window, source, axis, places)._replace(unread=unread)
        engine = "processes" if cores > 1 else "serial"
    # The folder goes when the last one who can look into it does.
    folder = tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True)
    with engine_named(engine, min(cores, len(readable))) as run:
        outcomes = run(partial(_survey_file, Path(folder.name), axis, how), list(enumerate(readable)))
        surveyed, places, unread = _sorted_out(files, outcomes)
        check(len(surveyed), unread, _cut([one.facts for one, _ in surveyed]), strict)
        agreed = agree([one for one, _ in surveyed], window, places)
        booked = run(_book_file, [(surveyed[share.place][1], share) for share in agreed.shares])

    def ranks(number: int, _: object = folder) -> RankTrace:
        return spill.load(booked[number], RankTrace)

    measured = conclude(spill.SpilledItems(len(booked), ranks), agreed, window, source or _sources(agreed.facts))
    return measured._replace(unread=unread)


def measure(
    traces: Sequence[Events],
    window: Window = "steps",
    source: str = "",
    axis: str = "",
    places: Sequence[int] = (),
) -> MeasuredTrace:
    """Ledgers of each rank and part, and the mean of the full steps. `axis`: the mesh axis that all ranks form,
    where the job's layout has only one. `places`: as in `agree`. Raises `BadInput` for ranks of different jobs."""
    classified = [classify_rank(msgspec.structs.replace(events, axis=axis)) for events in traces]
    agreed = agree([survey(one.events, one.classified, one.keys) for one in classified], window, places)
    ranks = tuple(book_rank(classified[share.place], share) for share in agreed.shares)
    return conclude(ranks, agreed, window, source or _sources(traces))


def read(paths: Sequence[Path | str], how: ReadOptions = AS_WRITTEN) -> list[Events]:
    """All ranks' events from files and folders. Raises `BadFile` if any of them is damaged."""
    files = rank_files(paths)
    for file in files:
        if isinstance(file, Unread):
            raise file.error()
    return [events for file in files if isinstance(file, Path) for events in read_file(file, how)]


def _sorted_out(
    files: Sequence[Path | Unread], outcomes: Sequence[Sequence[_Rank] | Unread]
) -> tuple[list[_Rank], list[int], tuple[Unread, ...]]:
    """The ranks of the files that could be read, the place of each among all files, and the other files. `outcomes`:
    what reading each of the readable files gave. A file that could not be read takes one place."""
    outcome = iter(outcomes)
    ranks: list[_Rank] = []
    places: list[int] = []
    unread: list[Unread] = []
    for file in files:
        found = file if isinstance(file, Unread) else next(outcome)
        if isinstance(found, Unread):
            unread.append(found)
        else:
            first = len(ranks) + len(unread)
            places.extend(range(first, first + len(found)))
            ranks.extend(found)
    return ranks, places, tuple(unread)


def _cut(facts: Sequence[Events]) -> list[str]:
    return [events.source for events in facts if events.cut_short]


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def _sources(facts: Sequence[Events]) -> str:
    """What ledgers of several files are called."""
    return listed(list(dict.fromkeys(events.source for events in facts)), 1)


def _survey_file(
    folder: Path, axis: str, how: ReadOptions, task: tuple[int, Path]
) -> list[tuple[Survey, Path]] | Unread:
    """In a worker: the survey of each of one file's ranks and the file in `folder` that holds the rest of it, or why
    the file cannot be read."""
    number, path = task
    if not folder.is_dir():
        raise EnvironmentFailed(
            f"{folder} is not there on {socket.gethostname()}.", "Point TMPDIR at a folder that all hosts share."
        )
    traces = read_or_reason(path, how)
    if isinstance(traces, Unread):
        return traces
    surveyed = []
    for place, events in enumerate(traces):
        one = classify_rank(msgspec.structs.replace(events, axis=axis))
        file = folder / f"{number}-{place}.classified"
        spill.save(file, one)
        surveyed.append((survey(one.events, one.classified, one.keys), file))
    return surveyed


def _book_file(task: tuple[Path, RankAgreement]) -> Path:
    """In a worker: one rank's file to the file of what was booked."""
    path, share = task
    booked = path.with_suffix(".booked")
    spill.save(booked, book_rank(spill.load(path, ClassifiedRank), share))
    path.unlink()
    return booked
