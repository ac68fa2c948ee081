"""Finds the trace files of a job's ranks, and reports those that cannot be read.

All kinds of damage (empty, cut before the first event, random bytes, a broken gzip, no permission, wrong content) are
handled the same way: of several files, the readable ones are analysed and the others are listed; if none can be read,
it is an error. With `strict`, every damaged file is an error, including one that was cut short and read in part.

In a folder, rank files are the files that a reader recognises, those whose names differ from these in digits only,
those named as JSON that do not hold a JSON object, and reports that have to be exported first, unless their export is
there too. Other files (such as a run's records) are ignored. Only regular files are read.

All files of a job must be of one format.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from trainyard.errors import BadFile, BadInput, DamagedFile, MissingFile
from trainyard.events import Events
from trainyard.formats.regular_files import irregular
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.choose_reader import certain_reader_name, read_file, reader_name, refusal
from trainyard.trace.readers.kineto.unpack import ENDINGS, open_documents, peek
from trainyard.trace.readers.recognise import UNREADABLE_ENDINGS
from trainyard.units import listed

_JSON = (".json", ".json.gz")
_ENDINGS = (*ENDINGS, *(f"{ending}.gz" for ending in ENDINGS), ".zip")
_HEAD_BYTES = 1 << 16
"""Bytes at the beginning of a file that show whether it is JSON, or a copy of another one."""
MAX_LISTED_FILES = 4
_DIGITS = re.compile(r"\d+")
_PACKED_OR_PROFILE = re.compile(rf"({'|'.join(map(re.escape, ENDINGS))})?(\.gz|\.zip)?\Z")


class Unread(NamedTuple):
    """A file that cannot be read. `reason`: has no full stop at its end; `next_step`: advice to the user, or empty;
    `kind`: the class of the error that reading it raises."""

    path: Path
    reason: str
    next_step: str = ""
    kind: type[BadFile] = BadFile

    def error(self) -> BadFile:
        return self.kind(f"{self.path}: {self.reason}.", self.next_step)

    def __str__(self) -> str:
        return f"{self.path.name} ({self.reason})"


def rank_files(paths: Sequence[Path | str]) -> list[Path | Unread]:
    """Lists the given files, and the rank files in the given folders, sorted by name within a folder; an `Unread` takes
    the position of a file that cannot be opened, or that no reader recognises in a folder. Raises `BadFile` for a
    path that does not exist and for a folder without a profiler file, `BadInput` for a file given twice, also packed,
    and for files of several formats."""
    files: list[Path | Unread] = []
    for path in map(Path, paths):
        if os.path.isdir(path):  # unlike Path.is_dir, it takes a name that is too long
            files.extend(_files_in_folder(path))
        elif not os.path.lexists(path):
            raise MissingFile(f"{path}: no such file.")
        else:
            reason = _unreadable(path)
            files.append(Unread(path, reason) if reason else path)
    resolved_paths = Counter(os.path.realpath(file.path if isinstance(file, Unread) else file) for file in files)
    repeated = [path for path, times in resolved_paths.items() if times > 1]
    if repeated:
        raise BadInput(f"{repeated[0]} is given twice.", "Pass each rank's file once.")
    readable = [file for file in files if isinstance(file, Path)]
    _check_one_format(readable)
    _check_distinct(readable)
    return files


def read_or_reason(file: Path, options: ReadOptions) -> Sequence[Events] | Unread:
    """One file's ranks, or why the file cannot be read."""
    try:
        return read_file(file, options)
    except BadFile as error:
        return _unread(file, error)


def _unread(file: Path, error: BadFile) -> Unread:
    """Converts the error of reading a file; the reason is its message without the path and the full stop."""
    reason = error.message.removeprefix(f"{file}: ").rstrip(".")
    return Unread(path=file, reason=reason, next_step=error.next_step, kind=type(error))


def raise_if_unreadable(file_count: int, unread: Sequence[Unread], truncated: Sequence[str], strict: bool) -> None:
    """Raises the error for unreadable files: none could be read, or, with `strict`, one could not or was cut short.

    `file_count`: the number of all files, of which `unread` could not be read; `truncated`: the names of files that
    were cut short and read in part. A file may contain several ranks. Returns without an error in all other cases.
    """
    read_count = file_count - len(unread)
    if unread and not read_count and len(unread) == 1:
        raise unread[0].error()
    if unread and (strict or not read_count):
        count = f"{len(unread):,} of {file_count:,} files" if read_count else f"none of {file_count:,} files"
        raise BadFile(
            f"{count} {'cannot' if read_count else 'can'} be read: {listed(unread, MAX_LISTED_FILES)}.",
            "Without --strict the others are analysed."
            if read_count
            else "Record them again, or copy them completely.",
        )
    if strict and truncated:
        raise DamagedFile(
            f"{len(truncated):,} of {read_count:,} files {'is' if len(truncated) == 1 else 'are'} cut short: "
            f"{listed(truncated, MAX_LISTED_FILES)}.",
            "Without --strict their complete events are analysed.",
        )


def left_out(unread: Sequence[Unread], read_count: int, ranks: Sequence[int], world: int) -> str:
    """Describes the unread files and the missing ranks in a sentence or two.

    `read_count`: the number of files that were read, which may contain several ranks each; `ranks`: numbers of the
    ranks that were read; `world`: ranks of the job as the files state it, 0 if they do not. An unread file counts as
    one rank.
    """
    files, least_ranks = read_count + len(unread), len(ranks) + len(unread)
    total, present = world or least_ranks, set(ranks)
    missing_count = total - sum(rank < total for rank in present)
    # A file states the world size, which may be absurd: only the first missing ranks are listed.
    first_missing = list(islice((rank for rank in range(total) if rank not in present), MAX_LISTED_FILES))
    missing = listed(first_missing, MAX_LISTED_FILES, missing_count)
    named = f"; ranks {missing} are missing" if missing_count > 1 else f"; rank {missing} is missing"
    return (
        f"{len(unread):,} of {files:,} files cannot be read: {listed(unread, MAX_LISTED_FILES)}. The figures are of "
        f"{len(ranks):,} of {max(world, least_ranks):,} ranks{named if missing_count else ''}."
    )


def _files_in_folder(folder: Path) -> list[Path | Unread]:
    """Lists the rank files in a folder by name, `Unread` for those that cannot be read.

    The rules are those of the module's description. Raises `BadFile` for a folder that cannot be listed, and
    `MissingFile` for one without a profiler file.
    """
    try:
        candidates = sorted(
            path
            for path in folder.iterdir()
            if path.name.endswith((*_ENDINGS, *UNREADABLE_ENDINGS)) and not path.is_dir()
        )
    except OSError as error:
        raise BadFile(f"{folder}: the folder cannot be read: {error.strerror or error}.") from error
    unread = {path: Unread(path, reason) for path in candidates if (reason := _unreadable(path))}
    readable = {path for path in candidates if path not in unread and reader_name(path)}
    # A report such as rank0.nsys-rep has been exported if there is a readable rank0.sqlite.
    exported = {path.name.partition(".")[0] for path in readable}
    patterns = {_name_without_digits(path) for path in readable}
    for path in candidates:
        if (
            path not in unread
            and path not in readable
            and (
                _name_without_digits(path) in patterns
                or _is_damaged_json(path)
                or (path.name.endswith(UNREADABLE_ENDINGS) and path.name.partition(".")[0] not in exported)
            )
        ):
            unread[path] = _unread(path, refusal(path))
    if not readable and not unread:
        raise MissingFile(
            f"{folder}: the folder contains no profiler file ({', '.join(_ENDINGS)}).", "Pass the folder of the traces."
        )
    return [unread.get(path, path) for path in candidates if path in unread or path in readable]


def _unreadable(path: Path) -> str:
    """Why the file cannot be opened as a regular file; empty if it can."""
    try:
        if kind := irregular(path.stat().st_mode):
            return f"{kind}, not a regular file"
        path.open("rb").close()
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return ""


def _is_damaged_json(path: Path) -> bool:
    """Whether a file that no reader recognises is named as JSON but does not begin like a JSON object."""
    return path.name.endswith(_JSON) and peek(path, _HEAD_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{"


def _name_without_digits(path: Path) -> str:
    return _DIGITS.sub("#", path.name)


def _check_one_format(files: Sequence[Path]) -> None:
    """Raises `BadInput` for files of several formats: they are of different jobs, or contain each rank twice. A damaged
    file has no format."""
    files_of_reader: dict[str, list[Path]] = {}
    for file in files if len(files) > 1 else ():
        if name := certain_reader_name(file):
            files_of_reader.setdefault(name, []).append(file)
    if len(files_of_reader) > 1:
        formats = (
            f"{len(files):,} of {name} ({listed([file.name for file in files], 2)})"
            for name, files in sorted(files_of_reader.items())
        )
        raise BadInput(
            f"the files are of {len(files_of_reader)} formats: {'; '.join(formats)}.",
            "Pass the files of one profiler: those of several are not the ranks of one job.",
        )


def _check_distinct(files: Sequence[Path]) -> None:
    """Raises `BadInput` for a file and a packed copy of it: they would count as two ranks. Files count as copies if
    their names without the endings of packing and format agree, and their first unpacked bytes do."""
    file_of_name: dict[str, Path] = {}
    for file in files if len(files) > 1 else ():
        other = file_of_name.setdefault(_PACKED_OR_PROFILE.sub("", str(file)), file)
        if other is not file and (beginning := _beginning(file)) and _beginning(other) == beginning:
            raise BadInput(
                f"{other} and {file.name} hold the same recording, and would count as two ranks.", "Remove one of them."
            )


def _beginning(file: Path) -> bytes:
    """The first bytes (at most `_HEAD_BYTES`) of the file's first document, unpacked; empty if it is damaged."""
    try:
        return next(iter(open_documents(file, AS_WRITTEN.limit)[0]))[:_HEAD_BYTES]
    except (BadFile, StopIteration):
        return b""
