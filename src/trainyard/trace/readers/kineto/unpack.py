"""A file's text in pieces of a few megabytes, whatever it is packed in: nothing, gzip or zip.

What a cut-short or damaged stream still gives is given; what was lost is said afterwards in `lost`.
"""

from __future__ import annotations

import gc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from trainyard import units
from trainyard.errors import BadFile, DamagedFile, FileTooLarge
from trainyard.formats.regular_files import unreadable

CHUNK = 1 << 20
"""Bytes of text a piece, at most: larger ones cost more in fresh memory than they save in calls."""
_PACKED, _DROP = 1 << 18, 8
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"


class UnpackedText:
    """The text of one document: an iterator of pieces. `lost` is empty or says, after the last piece, what is gone."""

    def __init__(self, path: Path, name: str, pieces: Callable[[UnpackedText], Iterator[bytes]], limit: int) -> None:
        self.path, self.name, self.limit = path, name, limit
        self.lost = ""
        self.size = 0
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces(self):
                self.size += len(piece)
                if self.size > self.limit:
                    raise FileTooLarge(
                        f"{self.path}: unpacked it is more than {units.show_size(self.limit)}, the limit.",
                        "Raise the limit (--limit) if you trust the file.",
                    )
                yield piece
        except OSError as error:
            raise unreadable(self.path, error) from error
        if not self.size:
            raise DamagedFile(
                f"{self.path}: {self.lost or 'the file is empty (0 bytes)'}.",
                "Was the run cut short before the trace was written?",
            )


@contextmanager
def no_collection() -> Iterator[None]:
    """Many live objects and no garbage: looking for cycles among them takes a third of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def texts(path: Path, limit: int) -> list[UnpackedText]:
    """The documents in a file: one, or of a zip each of its `.json` members. Raises `BadFile`."""
    head = peek(path, 4, packed=True)
    if head == ZIP:
        return _members(path, limit)
    return [UnpackedText(path, path.name, _gunzipped if head[:2] == GZIP else _plain, limit)]


def peek(path: Path, size: int, packed: bool = False) -> bytes:
    """The first bytes of a file's text (of the file itself where `packed`). Raises `BadFile`."""
    try:
        with path.open("rb") as file:
            head = file.read(size)
            if packed or head[:2] != GZIP:
                return head
            with suppress(zlib.error):
                return zlib.decompressobj(31).decompress(head + file.read(size), size)
            return b""
    except OSError as error:
        raise unreadable(path, error) from error


def _plain(text: UnpackedText) -> Iterator[bytes]:
    with text.path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def _gunzipped(text: UnpackedText) -> Iterator[bytes]:
    return _inflated(text, lambda: text.path.open("rb"))


def _inflated(text: UnpackedText, opened: Callable[[], IO[bytes]]) -> Iterator[bytes]:
    start, error = _inflater()
    stream, read, given, begun = start(31), 0, 0, False
    with opened() as file:
        try:
            while packed := file.read(_PACKED):
                read += len(packed)
                while packed:
                    if stream.eof:
                        # Gzip files may be joined end to end; zeros after the last one are padding.
                        packed, stream, begun = packed.lstrip(b"\0"), start(31), False
                    begun = begun or bool(packed)
                    if piece := stream.decompress(packed, CHUNK):
                        given += len(piece)
                        yield piece
                    packed = stream.unused_data if stream.eof else stream.unconsumed_tail
            if begun and not stream.eof:
                text.lost = f"the gzip stream ends early, after {read:,} bytes"
                if piece := stream.flush():
                    yield piece
        except error as why:
            text.lost = f"the gzip stream is damaged within its first {read:,} bytes ({why})"
    if "damaged" in text.lost:
        yield from _rescued(opened, given, read - _PACKED)


def _rescued(opened: Callable[[], IO[bytes]], given: int, near: int) -> Iterator[bytes]:
    """What a damaged stream holds beyond the `given` bytes: it is fed drop by drop where the damage must be, since the
    call that meets it gives nothing."""
    stream = zlib.decompressobj(31)
    with opened() as file, suppress(zlib.error):
        while packed := file.read(_PACKED if file.tell() < near - _PACKED else _DROP):
            while packed:
                if stream.eof:
                    packed, stream = packed.lstrip(b"\0"), zlib.decompressobj(31)
                piece = stream.decompress(packed, CHUNK)
                if len(piece) > given:
                    yield piece[given:]
                given -= min(given, len(piece))
                packed = stream.unused_data if stream.eof else stream.unconsumed_tail


def _members(path: Path, limit: int) -> list[UnpackedText]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith((".json", ".json.gz"))]
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise DamagedFile(f"{path}: the zip archive is damaged: {error}.", "Was the copy cut short?") from error
    if not names:
        raise BadFile(f"{path}: the zip archive holds no .json or .json.gz file.")
    return [UnpackedText(path, name, _member(name), limit) for name in names]


def _member(name: str) -> Callable[[UnpackedText], Iterator[bytes]]:
    def pieces(text: UnpackedText) -> Iterator[bytes]:
        try:
            with zipfile.ZipFile(text.path) as archive:
                if name.endswith(".gz"):
                    yield from _inflated(text, lambda: archive.open(name))
                    return
                with archive.open(name) as file:
                    while piece := file.read(CHUNK):
                        yield piece
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            # A password or a method Python lacks (RuntimeError both), a checksum that does not fit.
            text.lost = f"{name} in the zip archive is damaged or locked ({error})"

    return pieces


def _inflater() -> tuple[Any, Any]:
    """A maker of streams that inflate, and the error they raise."""
    try:
        from isal import isal_zlib  # the extra `fast`
    except ImportError:
        return zlib.decompressobj, zlib.error
    return isal_zlib.decompressobj, isal_zlib.error
