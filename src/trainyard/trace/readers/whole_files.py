"""Reads a complete file, or the JSON in it, into memory, or unpacks it to a temporary file, within a size limit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from trainyard import units
from trainyard.errors import BadFile, DamagedFile, FileTooLarge
from trainyard.formats.regular_files import unreadable
from trainyard.trace.readers.kineto.unpack import GZIP, ZIP, UnpackedText, open_documents, peek

MAX_BYTES = 4 << 30
"""Maximum bytes of a file that these readers hold in memory."""
HEAD_BYTES = 65536
"""Bytes at a file's beginning by which a reader recognizes its format."""
_T = TypeVar("_T")


def head(path: Path) -> bytes:
    """The first `HEAD_BYTES` bytes; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""


def size(path: Path, limit: int) -> int:
    """The file's size in bytes. Raises `BadFile`: missing, larger than `limit` or `MAX_BYTES`."""
    try:
        file_bytes = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    limit = min(limit, MAX_BYTES)
    if file_bytes > limit:
        raise FileTooLarge(
            f"{path}: {units.show_size(file_bytes)} is more than this reader's limit of {units.show_size(limit)}.",
            "Record fewer steps.",
        )
    return file_bytes


def is_packed(path: Path) -> bool:
    """Whether the file is a gzip or a zip archive. Raises `BadFile`."""
    return peek(path, 4, packed=True).startswith((GZIP, ZIP))


def contents(path: Path, limit: int) -> bytes:
    """The file's contents, unpacked if it is a gzip or a zip archive of one file. Raises `BadFile`: missing, empty,
    damaged, packed or unpacked larger than `limit` bytes."""
    size(path, limit)
    try:
        data = b"".join(_pieces(_only_text(path, limit))) if is_packed(path) else path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    if not data.strip():
        raise DamagedFile(
            f"{path}: the file is empty ({len(data):,} bytes).", "Was the run cut short before the profile was written?"
        )
    return data


@contextmanager
def plain_file(path: Path, limit: int) -> Iterator[Path]:
    """Gives a `with` block the path of a plain file with the file's contents: the file itself, or, if it is packed, a
    temporary one, which is removed afterwards. Raises `BadFile`: missing, damaged, an archive of several files, larger
    than `limit` bytes unpacked."""
    if is_packed(path):
        with unpacked(_only_text(path, limit)) as copy:
            yield copy
    else:
        yield path


@contextmanager
def unpacked(text: UnpackedText) -> Iterator[Path]:
    """Gives a `with` block the path of a temporary file, named like the document, with the document's bytes; it is
    removed afterwards. Raises `BadFile`."""
    with tempfile.TemporaryDirectory(prefix="trainyard-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / (Path(text.name).name.removesuffix(".gz") or "unpacked")
        with copy.open("wb") as file:
            file.writelines(_pieces(text))
        yield copy


def _only_text(path: Path, limit: int) -> UnpackedText:
    """The only document of a packed file. Raises `BadFile`: damaged, or an archive of several."""
    documents = open_documents(path, min(limit, MAX_BYTES))
    if len(documents) != 1:
        raise BadFile(f"{path}: the archive holds {len(documents):,} files.", "Unpack it and pass one of them.")
    return documents[0]


def _pieces(text: UnpackedText) -> Iterator[bytes]:
    """Yields the document's bytes. Raises `BadFile`, also if only a part of them could be read."""
    yield from text
    if text.lost:
        raise DamagedFile(f"{text.path}: {text.lost}.", "Copy the complete file again.")


def record(decoder: Callable[[bytes | str], _T], raw: msgspec.Raw) -> _T:
    """Decodes one record of a document whose records were left raw; replaces bytes that are not UTF-8."""
    try:
        return decoder(raw)
    except UnicodeDecodeError:
        return decoder(bytes(raw).decode("utf-8", "replace"))


def decode(path: Path, limit: int, kind: type[_T], tool: str) -> _T:
    """Decodes the file's JSON as `kind`. NaN and Infinity are read as null, and bytes that are not UTF-8 are replaced.
    `limit`: maximum of its unpacked bytes; `tool`: the program that writes such files, for messages. Raises
    `BadFile`."""
    data = contents(path, limit).removeprefix(b"\xef\xbb\xbf")  # the byte-order mark of UTF-8
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadFile(f"{path}: not what {tool} writes: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = error
    # The standard library's decoder is slower; it accepts NaN and control characters in texts.
    try:
        plain = json.loads(data.decode("utf-8", "replace"), parse_constant=lambda _: None, strict=False)
        return msgspec.json.decode(json.dumps(plain), type=kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"{path}: not what {tool} writes: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise DamagedFile(
            f"{path}: not JSON, or cut short: {reason} ({len(data):,} bytes).", "Was the file still being written?"
        ) from error
