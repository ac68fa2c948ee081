"""Load the flight records of a job's ranks from files and folders, and check that they belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard import units
from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge, MissingFile
from trainyard.formats.regular_files import is_regular, open_regular, unreadable
from trainyard.hangs.decode_record import decode_record
from trainyard.hangs.flight_record import FlightRecord
from trainyard.hangs.stack_text import parse_stack

DEFAULT_MAX_BYTES = 512 * 2**20
"""Largest file that is read. A buffer of 20,000 collectives with stacks takes about 30 MB."""
_MAX_FILES = 1 << 17
_RANK = re.compile(r"rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?!.*\d)")
_ENDINGS = (".json", ".pkl", ".pickle", ".pt", ".bin", ".flight", ".trace", ".dump")
_OTHER_FILES = (".out", ".err", ".log", ".pid", ".failed", ".toml", ".jsonl", ".md", ".txt", ".py", ".csv", ".gz")
"""Ends of names of files in a folder that are not flight records."""
_STACKS = (".stacks", ".stack")


class LoadedRecords(NamedTuple):
    """The flight records of a job by rank, warnings on files that could not be read, and the ranks of these files."""

    records: tuple[FlightRecord, ...]
    warnings: tuple[str, ...]
    unreadable: tuple[int, ...] = ()


def load_records(paths: Sequence[str | os.PathLike[str]], limit: int = DEFAULT_MAX_BYTES) -> LoadedRecords:
    """Load flight records from files, or from all files of folders.

    A file `rank<N>.stacks` with the Python stacks of a rank, as faulthandler or py-spy prints them, completes the
    record of its rank. A damaged file is left out with a warning if other records could be read. `limit`: largest
    number of bytes of a file.

    Raises `MissingFile` for a path that does not exist or a folder without records, `BadFile` if no file can be read,
    and `BadInput` for two records of one rank or records of different jobs.
    """
    records: dict[int, FlightRecord] = {}
    failures: dict[Path, BadFile] = {}
    stacks: dict[int, str] = {}
    for path, is_named in _list_files(paths):
        if path.name.endswith(_STACKS):
            if (rank := rank_of_name(path.name)) >= 0:
                stacks[rank] = _read(path, limit).decode("utf-8", "replace")
            continue
        try:
            record = decode_record(_read(path, limit), str(path), rank_of_name(path.name))
        except BadFile as error:
            # A file of another kind in a folder is not worth a warning, unlike a damaged record.
            if is_named or isinstance(error, DamagedFile | FileTooLarge) or _looks_like_record(path):
                failures[path] = error
            continue
        if record.rank in records:
            raise BadInput(
                f"{records[record.rank].source} and {path}: both are records of rank {record.rank}.",
                "Pass the files of one attempt of one job.",
            )
        records[record.rank] = record
    if not records:
        if failures:
            raise next(iter(failures.values()))
        raise MissingFile(
            f"{', '.join(map(str, paths))}: no flight records.",
            "Set TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_BUFFER_SIZE=20000; "
            "torch then writes a file for each rank, whose path begins with TORCH_FR_DUMP_TEMP_FILE.",
        )
    warnings = tuple(error.message for error in failures.values())
    unreadable = tuple(rank for path in failures if (rank := rank_of_name(path.name)) >= 0 and rank not in records)
    for rank, text in stacks.items():
        record = records.get(rank)
        if record is not None and not record.state.stack:
            records[rank] = record._replace(state=record.state._replace(stack=parse_stack(text)))
    check_same_job(list(records.values()))
    return LoadedRecords(tuple(records[rank] for rank in sorted(records)), warnings, unreadable)


def rank_of_name(name: str) -> int:
    """The rank in a file's name: the number after `rank`, else the last number; -1 if there is none."""
    stem = name
    while stem.endswith(_ENDINGS):
        stem = stem[: stem.rindex(".")]
    match = _RANK.search(stem) or _LAST_NUMBER.search(stem)
    return int(match[1]) if match else -1


def check_same_job(records: Sequence[FlightRecord]) -> None:
    """Raise `BadInput` if the records belong to different jobs: by the job's id, the number of ranks, the members of
    the default group, or a rank that is not a member."""
    for key, noun in (("job", "job"), ("world", "number of ranks")):
        values = {getattr(record, key): record for record in records if getattr(record, key)}
        if len(values) > 1:
            (first, one_record), (second, other_record) = list(values.items())[:2]
            raise BadInput(
                f"{one_record.source} and {other_record.source}: the {noun} differs, {first} and {second}.",
                "Pass the records of one job only.",
            )
    defaults = {
        group.ranks: record
        for record in records
        for group in record.groups.values()
        if group.description == "default_pg" and group.ranks
    }
    if len(defaults) > 1:
        (first, one_record), (second, other_record) = list(defaults.items())[:2]
        raise BadInput(
            f"{one_record.source} and {other_record.source}: the default group has {len(first)} and {len(second)} "
            "members.",
            "Pass the records of one job only.",
        )
    for members in defaults:
        for record in records:
            if record.rank not in members:
                raise BadInput(
                    f"{record.source}: rank {record.rank} is not a member of the job's default group, which has "
                    f"{len(members)} ranks.",
                    "Pass the records of one job only, each in a file whose name ends in its rank.",
                )


def _list_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[Path, bool]]:
    """Yield each file, and whether it was named itself rather than being part of a folder. A file that is reached twice
    is listed once. Raises `MissingFile`, and `BadInput` for a folder with too many files."""
    seen: set[str] = set()
    for path in map(Path, paths):
        try:
            is_folder = path.is_dir()
            names = sorted(os.listdir(path)) if is_folder else [""]
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
        if len(names) > _MAX_FILES:
            raise BadInput(f"{path}: {len(names):,} files, more than the {_MAX_FILES:,} of the largest job.")
        for name in names:
            file = path / name if is_folder else path
            if is_folder and (name.endswith(_OTHER_FILES) or name.startswith(".") or not is_regular(file)):
                continue
            if (real := os.path.realpath(file)) not in seen:
                seen.add(real)
                yield file, not is_folder


def _looks_like_record(path: Path) -> bool:
    return "nccl_trace" in path.name or path.name.endswith(".flight")


def _read(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes. Raises `BadFile`, `FileTooLarge`."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FileTooLarge(
            f"{path}: larger than the limit of {units.show_size(limit)}.",
            "Raise the limit (--limit) if you trust the file.",
        )
    return data
