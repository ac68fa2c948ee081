"""Packs a part of a run as one archive (tar, compressed with gzip), and unpacks archives from other nodes.

An archive may come from anyone who can write to the shared folder or reach the collecting port. Unpacking creates
regular files in known subfolders only: other names, links, devices, files that occur twice, and numbers and sizes
beyond the limits are refused before anything counts as unpacked.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge
from trainyard.formats.regular_files import is_regular, read_bytes
from trainyard.redact import redact_json, redact_lines
from trainyard.run.parts import part as parts
from trainyard.run.parts.part import Part
from trainyard.store.disk_space import free_bytes, writing
from trainyard.store.redact_run import redact_job
from trainyard.store.unfinished_writes import writer
from trainyard.units import show_ranges, show_size

MAX_FILES = 50_000
MAX_FILE_BYTES = 1 << 32
MAX_TOTAL_BYTES = 1 << 34
"""Limits of an unpacked part: number of files, size of each file, and their total size."""
MAX_PACKED_BYTES = 1 << 32
"""Largest archive of a part that is read."""
TOP_FILES = (parts.FILE, "run.json", "job.toml", "ledgers.json")
"""Files that describe a part as a whole, and are not copied to a joined run."""
_FOLDERS = ("samples", "facts", "traces", "profiles", "logs", "life")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z")
_RANK = re.compile(r"rank(\d{1,6})\.")
_UNREADABLE = (tarfile.TarError, OSError, EOFError, zlib.error, UnicodeDecodeError)
_OTHER_ARCHIVE = "If it was packed by another program, unpack it and pass the run's folder."
_CHUNK_BYTES, _BLOCK_BYTES = 1 << 20, tarfile.BLOCKSIZE
_MAX_PADDING_BYTES = 2 * tarfile.RECORDSIZE
"""Zeros with which tar fills the last record."""


def pack(folder: Path, ranks: Collection[int]) -> bytes:
    """Pack the part in a run's folder: the files of `ranks`, and those that belong to no rank. Returns the archive.

    The folder must have a `part.json` (`part.write_part`). A rank's trace is left out if the folder has its reduced
    profile, `profiles/rank<N>.*`. Documents and logs are redacted. Checkpoints, tags and locks are never packed. Raises
    `BadFile` for a file that cannot be read.
    """
    parts.read_part(folder)  # an archive without one cannot be unpacked
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in file_names(folder, ranks):
            data = _redacted(name, read_bytes(folder / name))
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def unpack(data: bytes, into: Path, shown: str = "the archive") -> Part:
    """Unpack an archive to the folder `into`, which must not exist, and return its part.

    `shown`: the archive's name in messages. The folder appears under its name only when everything in it was checked.
    Raises `BadFile` for anything but a part of a run with files of its own ranks, `FileTooLarge` beyond the limits, and
    the errors of `disk_space.writing`.
    """
    if into.exists() or into.is_symlink():
        raise BadInput(f"{into}: is in the way of a part that is unpacked there.", "Move it away.")
    staging = into.with_name(f".unpack-{into.name}-{writer()}")
    try:
        with writing(staging):
            staging.mkdir(parents=True)
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as compressed:
                _extract(compressed, staging, shown)
        except _UNREADABLE as error:
            raise DamagedFile(f"{shown}: not an archive of a part, or damaged: {error}.", _OTHER_ARCHIVE) from error
        part = parts.read_part(staging, shown)
        _check_ranks(staging, part, shown)
        with writing(into):
            staging.rename(into)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return part


def file_names(folder: Path, ranks: Collection[int]) -> Iterator[str]:
    """Yield the names, relative to the folder, of the regular files of a part, in a fixed order: those of `ranks`, and
    those that belong to no rank. A trace whose reduced profile exists is left out."""
    yield from (name for name in TOP_FILES if is_regular(folder / name, links=False))
    reduced = {rank_of(path.name) for path in (folder / "profiles").glob("rank*")}
    for subfolder in _FOLDERS:
        for path in sorted((folder / subfolder).glob("*")):
            rank = rank_of(path.name)
            is_left_out = rank is not None and (rank not in ranks or (subfolder == "traces" and rank in reduced))
            if not is_left_out and _NAME.match(path.name) and is_regular(path, links=False):
                yield f"{subfolder}/{path.name}"


def rank_of(name: str) -> int | None:
    """The rank in the name of a file, such as `rank3.jsonl`; None if it is not of a single rank."""
    match = _RANK.match(name)
    return int(match[1]) if match else None


def _redacted(name: str, data: bytes) -> bytes:
    """The contents of a packed file without secrets. Samples, ledgers, traces and profiles are written without them."""
    if name == "job.toml":
        return redact_job(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if name.startswith("logs/"):
        lines = data.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        return "".join(redact_lines(lines)).encode("utf-8", "surrogateescape")
    if name in (parts.FILE, "run.json") or name.startswith(("facts/", "life/")):
        return redact_json(data, keep_numbers=True)
    return data


def _extract(stream: gzip.GzipFile, folder: Path, shown: str) -> None:
    """Extract the files of a tar into `folder`, which is empty. Raises `BadFile` for an entry that is refused.

    Only plain headers are understood: extended headers, which other tools use for long names, are refused, so that no
    entry makes this process hold more than a block.
    """
    seen: set[str] = set()
    total, limit = 0, min(MAX_TOTAL_BYTES, free_bytes(folder))
    while (header := _read_exactly(stream, _BLOCK_BYTES, shown)).strip(b"\0"):
        entry = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        if reason := _refusal(entry, seen):
            raise BadFile(f"{shown}: contains {entry.name[:200]!r}, {reason}.", _OTHER_ARCHIVE)
        seen.add(entry.name)
        total += entry.size
        if len(seen) > MAX_FILES:
            raise FileTooLarge(f"{shown}: more than {MAX_FILES:,} files.")
        if entry.size > MAX_FILE_BYTES or total > limit:
            raise FileTooLarge(
                f"{shown}: {entry.name} of {show_size(entry.size)} brings it to {show_size(total)}, but at most "
                f"{show_size(limit)} are unpacked, {show_size(MAX_FILE_BYTES)} a file."
            )
        _extract_file(stream, folder / entry.name, entry.size, shown)
    if len(stream.read(_MAX_PADDING_BYTES + 1)) > _MAX_PADDING_BYTES:
        raise BadFile(f"{shown}: contains more after its last file.")


def _extract_file(stream: gzip.GzipFile, path: Path, size: int, shown: str) -> None:
    """Copy the next `size` bytes of the stream to the new file `path`, and skip the padding to a whole block."""
    with writing(path, size):
        path.parent.mkdir(exist_ok=True)
        with path.open("xb") as target:
            for start in range(0, size, _CHUNK_BYTES):
                target.write(_read_exactly(stream, min(_CHUNK_BYTES, size - start), shown))
    _read_exactly(stream, -size % _BLOCK_BYTES, shown)


def _read_exactly(stream: gzip.GzipFile, size: int, shown: str) -> bytes:
    """Read `size` bytes. Raises `DamagedFile` if the stream ends earlier or cannot be unpacked."""
    try:
        data = stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFile(f"{shown}: cannot be unpacked: {error}.") from error
    if len(data) != size:
        raise DamagedFile(f"{shown}: ends {size - len(data)} bytes before the end of a file.")
    return data


def _refusal(entry: tarfile.TarInfo, seen: Collection[str]) -> str:
    """Why an entry of an archive is refused, as a phrase; empty if it is not. `seen`: names of earlier entries."""
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        return "which is not a regular file"
    folder, slash, name = entry.name.rpartition("/")
    if entry.name not in TOP_FILES and not (slash and folder in _FOLDERS and _NAME.match(name)):
        return "which is not the name of a file of a part"
    if entry.name in seen:
        return "a second time"
    return f"of {entry.size} bytes" if entry.size < 0 else ""


def _check_ranks(folder: Path, part: Part, shown: str) -> None:
    """Raise `BadFile` if a file in the folder belongs to a rank that is not of the part."""
    own = set(part.ranks)
    for path in sorted(folder.glob("*/rank*")):
        rank = rank_of(path.name)
        if rank is not None and rank not in own:
            name = path.relative_to(folder).as_posix()
            raise BadFile(f"{shown}: contains {name}, but its ranks are {show_ranges(part.ranks)}.")
