"""Profiler files -> ledgers: read -> classify -> align -> book -> conclude, for one or many ranks of one job.

- read: each file becomes the `Events` of one or more ranks.
- classify: each interval of a rank gets an account (such as `compute/matmul`) and a phase.
- align: clocks, step bounds and process groups of all ranks are determined from a `Survey` of each: its collectives
  and step marks.
- book: each instant of a rank's window is assigned to one account; each part of the window (a step, or the work before
  the first one) gets a ledger.
- conclude: the mean ledger, late ranks and notes over all ranks.

A few small files are measured in memory. Larger sets are measured in worker processes: each file is read, classified,
written to disk and surveyed; clocks, steps and groups are aligned from the surveys, which are small; then each rank is
booked separately. Booked ranks stay on disk and are memory-mapped on access, so that memory does not grow with the
traces.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from trainyard.errors import EnvironmentFailed
from trainyard.events import Events
from trainyard.ledger import Ledger
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.align.cross_rank import Agreement, RankAgreement, Window, align_ranks
from trainyard.trace.align.survey import Survey, survey
from trainyard.trace.booking.book_rank import ClassifiedRank, RankTrace, book_rank, classify_rank
from trainyard.trace.booking.summarise_rank import RankSummary, summarise_rank
from trainyard.trace.flops.op_costs import BUILT_IN, TIMES_ONLY, Formulas
from trainyard.trace.measured_trace import MeasuredTrace, conclude, mean_ledgers
from trainyard.trace.parallel import spill
from trainyard.trace.parallel.engines import engine as engine_named
from trainyard.trace.rank_files import Unread, raise_if_unreadable, rank_files, read_file, read_or_reason
from trainyard.units import listed

_MAX_FILES_IN_MEMORY = 16
_MAX_BYTES_IN_MEMORY = 32 * 2**20
"""Limits of several files that are measured in this process; unpacked, a file takes many times its size."""
MAX_RANKS_IN_DETAIL = 64
"""Ranks from which each is summarised when it is booked, so that drawing them does not load them again."""
_Rank = TypeVar("_Rank")


def measure_files(
    paths: Sequence[Path | str],
    window: Window = "steps",
    source: str = "",
    axis: str = "",
    engine: str = "auto",
    options: ReadOptions = AS_WRITTEN,
    strict: bool = False,
    formulas: Formulas = BUILT_IN,
) -> MeasuredTrace:
    """Reads the files of a job's ranks and measures them: ledgers of each rank and part, and their mean.

    `paths`: files and folders; `window`: `steps` for a ledger of each step, else the whole recording is one part;
    `source`: the mean ledger's name; `axis`: the mesh axis (a key of words.AXES) that all ranks form; `engine`: a key
    of `engines.ENGINES`, or `auto`: a few small files in memory, others in worker processes; `options`: options of the
    readers; `formulas`: of the FLOPs and bytes of ops.

    If there are several files, unreadable ones are left out and listed in `MeasuredTrace.unread`, unless `strict`.
    Raises `BadFile` if no file can be read, or, with `strict`, if any file cannot be read completely; `BadInput` for a
    file given twice and for ranks of different jobs.
    """
    files = rank_files([Path(path).absolute() for path in paths])
    readable = [file for file in files if isinstance(file, Path)]
    if not readable:
        raise_if_unreadable(
            len(files), unread=[file for file in files if isinstance(file, Unread)], truncated=(), strict=strict
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if engine == "auto":
        if len(readable) == 1 or (
            len(readable) <= _MAX_FILES_IN_MEMORY and _total_bytes(readable) <= _MAX_BYTES_IN_MEMORY
        ):
            read_outcomes = [read_or_reason(path, options) for path in readable]
            traces, file_indices, unread = _merge_outcomes(files, read_outcomes)
            truncated = [
                path.name
                for path, outcome in zip(readable, read_outcomes, strict=True)
                if not isinstance(outcome, Unread) and any(events.cut_short for events in outcome)
            ]
            raise_if_unreadable(len(files), unread, truncated, strict)
            return measure(traces, window, source, axis, file_indices, formulas)._replace(
                unread=unread, read_files=len(files) - len(unread) if unread else 0
            )
        engine = "processes" if cores > 1 else "serial"
    import tempfile

    # The folder is deleted with the last object that refers to it.
    folder = tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True)
    with engine_named(engine, min(cores, len(readable))) as run:
        outcomes = run(partial(_survey_file, Path(folder.name), axis, options), list(enumerate(readable)))
        surveyed, file_indices, unread = _merge_outcomes(files, outcomes)
        truncated = [
            path.name
            for path, outcome in zip(readable, outcomes, strict=True)
            if not isinstance(outcome, Unread) and any(rank.facts.cut_short for rank, _ in outcome)
        ]
        raise_if_unreadable(len(files), unread, truncated, strict)
        agreement = align_ranks([rank for rank, _ in surveyed], window, file_indices)
        booked = run(
            partial(_book_file, formulas, len(agreement.shares) > MAX_RANKS_IN_DETAIL),
            [(surveyed[rank_agreement.survey][1], rank_agreement) for rank_agreement in agreement.shares],
        )

    # The default argument refers to the folder, so that it exists as long as ranks can be loaded from it.
    def load_rank(number: int, _: object = folder) -> RankTrace:
        return spill.load(booked[number][0], RankTrace)

    measured = conclude(
        spill.SpilledItems(len(booked), load_rank), agreement, window, source or _ledger_source(agreement.facts)
    )
    return measured._replace(
        unread=unread,
        read_files=len(files) - len(unread) if unread else 0,
        formulas=formulas,
        summaries=tuple(summary for _, summary in booked if summary is not None),
    )


def measure(
    traces: Sequence[Events],
    window: Window = "steps",
    source: str = "",
    axis: str = "",
    file_indices: Sequence[int] = (),
    formulas: Formulas = BUILT_IN,
) -> MeasuredTrace:
    """Measures events in this process: ledgers of each rank and part, and the mean of the full steps.

    `traces`: the events of each rank; `window`: as in `measure_files`; `source`: the name of the mean ledger, by
    default those of the traces; `axis`: the mesh axis that all ranks form (a key of words.AXES), if the job's layout
    has only one; `file_indices`: the number of a rank whose file states none, for each rank; by default its index in
    `traces`; `formulas`: of the FLOPs and bytes of ops. Raises `BadInput` for ranks of different jobs.
    """
    ranks, agreement = _book_events(traces, window, axis, file_indices, formulas, with_rates=True)
    measured = conclude(ranks, agreement, window, source or _ledger_source(traces))
    return measured._replace(formulas=formulas)


def measure_mean(traces: Sequence[Events], window: Window = "steps", axis: str = "") -> Ledger:
    """The mean ledger that `measure` gives, without FLOPs and bytes and without anything else. The arguments are those
    of `measure`."""
    ranks, agreement = _book_events(traces, window, axis, (), TIMES_ONLY, with_rates=False)
    booked = [ledger for rank in ranks for ledger in rank.ledgers]
    return mean_ledgers([rank.parts for rank in ranks], booked, agreement.facts, _ledger_source(traces))[0]


def _book_events(
    traces: Sequence[Events],
    window: Window,
    axis: str,
    file_indices: Sequence[int],
    formulas: Formulas,
    *,
    with_rates: bool,
) -> tuple[tuple[RankTrace, ...], Agreement]:
    """The booked ranks, and the alignment of all of them. The arguments are those of `measure` and of `align_ranks`."""
    classified = [classify_rank(msgspec.structs.replace(events, axis=axis or events.axis)) for events in traces]
    surveys = [survey(rank.events, rank.classified, rank.keys) for rank in classified]
    agreement = align_ranks(surveys, window, file_indices, with_rates=with_rates)
    return tuple(book_rank(classified[own.survey], own, formulas) for own in agreement.shares), agreement


def read(paths: Sequence[Path | str], options: ReadOptions = AS_WRITTEN) -> list[Events]:
    """Reads the events of all ranks from files and folders, in order of file. Raises `BadFile` if any is damaged."""
    files = rank_files(paths)
    for file in files:
        if isinstance(file, Unread):
            raise file.error()
    return [events for file in files if isinstance(file, Path) for events in read_file(file, options)]


def _merge_outcomes(
    files: Sequence[Path | Unread], outcomes: Sequence[Sequence[_Rank] | Unread]
) -> tuple[list[_Rank], list[int], tuple[Unread, ...]]:
    """Separates what could be read from what could not: (ranks, index of each rank, unread files).

    `files`: as from `rank_files`; `outcomes`: for each of its paths (not for its `Unread`) the ranks in that file, or
    why it could not be read. The index of a rank counts the ranks of all files in order, with one rank for a file that
    could not be read, so that ranks without a number in their file keep it if another file is missing.
    """
    remaining_outcomes = iter(outcomes)
    ranks: list[_Rank] = []
    file_indices: list[int] = []
    unread: list[Unread] = []
    for file in files:
        outcome = file if isinstance(file, Unread) else next(remaining_outcomes)
        if isinstance(outcome, Unread):
            unread.append(outcome)
        else:
            first_index = len(ranks) + len(unread)
            file_indices.extend(range(first_index, first_index + len(outcome)))
            ranks.extend(outcome)
    return ranks, file_indices, tuple(unread)


def _total_bytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def _ledger_source(facts: Sequence[Events]) -> str:
    """The source name of a ledger of several files: the first one, and how many more there are."""
    return listed(list(dict.fromkeys(events.source for events in facts)), 1)


def _survey_file(
    folder: Path, axis: str, options: ReadOptions, task: tuple[int, Path]
) -> list[tuple[Survey, Path]] | Unread:
    """Reads, classifies and surveys one file; runs in a worker process.

    `task`: (number of the file, its path). Returns for each rank in the file its survey and the path, in `folder`, of
    the file to which its classified trace was written; or why the file cannot be read. Raises `EnvironmentFailed` on a
    host that does not share `folder`.
    """
    file_number, path = task
    if not folder.is_dir():
        import socket

        raise EnvironmentFailed(
            f"{folder} does not exist on {socket.gethostname()}.", "Set TMPDIR to a folder that all hosts share."
        )
    traces = read_or_reason(path, options)
    if isinstance(traces, Unread):
        return traces
    surveyed = []
    for events in traces:
        rank = classify_rank(msgspec.structs.replace(events, axis=axis or events.axis))
        file = folder / f"{file_number}-{len(surveyed)}.classified"
        spill.save(file, rank)
        surveyed.append((survey(rank.events, rank.classified, rank.keys), file))
    return surveyed


def _book_file(
    formulas: Formulas, is_summarised: bool, task: tuple[Path, RankAgreement]
) -> tuple[Path, RankSummary | None]:
    """Books one rank, and summarises it if `is_summarised`; runs in a worker process.

    `task`: (file of its classified trace, its share of the alignment). Writes the booked rank to another file, whose
    path is returned with the summary, and deletes the first.
    """
    path, share = task
    booked_file = path.with_suffix(".booked")
    booked = book_rank(spill.load(path, ClassifiedRank), share, formulas)
    spill.save(booked_file, booked)
    path.unlink()
    return booked_file, summarise_rank(booked) if is_summarised else None
