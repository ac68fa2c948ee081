"""Reads the bytes of a plain, gzip or zip file in pieces of at most 1 MiB, within a size limit.

The readable part of a truncated or damaged stream is returned; `lost` then describes the loss.
"""

from __future__ import annotations

import gc
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from trainyard import units
from trainyard.errors import BadFile, DamagedFile, FileTooLarge
from trainyard.formats.regular_files import unreadable

CHUNK_BYTES = 1 << 20
"""Maximum bytes of a piece: larger ones cost more in fresh memory than they save in calls."""
_MAX_MEMBERS = 1024
"""Maximum number of files in a zip archive."""
_PACKED_CHUNK_BYTES, _RESCUE_CHUNK_BYTES = 1 << 18, 8
"""Packed bytes per read of a gzip file: usually, and near damage, to lose as little text as possible."""
_GZIP_WINDOW_BITS = 31
"""zlib's `wbits` for a stream with a gzip header and the largest window: 16 + 15."""
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
ENDINGS = (".json", ".pb", ".pftrace", ".perfetto-trace", ".profile", ".proto", ".sqlite")
"""Ends of profilers' file names, each possibly followed by `.gz`."""


class UnpackedText:
    """The text of one document: an iterator of pieces. After the last piece, `lost` describes what could not be read;
    empty if nothing was lost."""

    def __init__(self, path: Path, name: str, pieces: Callable[[UnpackedText], Iterator[bytes]], limit: int) -> None:
        """`name`: of the document, for messages: the file's or that of a member of the zip archive; `pieces`: opens the
        file and yields the unpacked bytes, and sets `lost` of its argument; `limit`: maximum of unpacked bytes."""
        self.path, self.name, self.limit = path, name, limit
        self.lost = ""
        self.size = 0
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        """The unpacked bytes, piece by piece, from the beginning. Raises `FileTooLarge` beyond the limit, `DamagedFile`
        if nothing could be read."""
        self.size, self.lost = 0, ""
        try:
            for piece in self._pieces(self):
                self.size += len(piece)
                if self.size > self.limit:
                    raise FileTooLarge(
                        f"{self.path}: larger than the limit of {units.show_size(self.limit)} when unpacked.",
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
    """Disables Python's garbage collector inside a `with` block: among many live objects without cycles it takes a
    third of the time of reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def open_documents(path: Path, limit: int) -> list[UnpackedText]:
    """The documents in a file: one, or one for each profiler's file in a zip archive (for each of its files if none has
    a profiler's ending). They are read only when iterated. `limit`: maximum of unpacked bytes of each. Raises
    `BadFile`."""
    head = peek(path, 4, packed=True)
    if head == ZIP:
        return _open_members(path, limit)
    return [UnpackedText(path, path.name, _read_gzip if head[:2] == GZIP else _read_plain, limit)]


def peek(path: Path, size: int, packed: bool = False) -> bytes:
    """The first `size` bytes of a file's contents, unpacked if it is a gzip (of the file itself if `packed`). Raises
    `BadFile`."""
    try:
        with path.open("rb") as file:
            head = file.read(size)
            if packed or head[:2] != GZIP:
                return head
            with suppress(zlib.error):
                return zlib.decompressobj(_GZIP_WINDOW_BITS).decompress(head + file.read(size), size)
            return b""
    except OSError as error:
        raise unreadable(path, error) from error


def _read_plain(text: UnpackedText) -> Iterator[bytes]:
    with text.path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _read_gzip(text: UnpackedText) -> Iterator[bytes]:
    return _inflate(text, lambda: text.path.open("rb"))


def _inflate(text: UnpackedText, open_file: Callable[[], IO[bytes]]) -> Iterator[bytes]:
    """Yields the unpacked pieces of a gzip file; sets `text.lost` if it is damaged or ends early. `open_file`: opens
    the packed file from its beginning."""
    new_stream, stream_error = _choose_inflater()
    stream, read_bytes, yielded_bytes, has_data = new_stream(_GZIP_WINDOW_BITS), 0, 0, False
    with open_file() as file:
        try:
            while packed := file.read(_PACKED_CHUNK_BYTES):
                read_bytes += len(packed)
                while packed:
                    if stream.eof:
                        # Gzip files may be joined end to end; zeros after the last one are padding.
                        packed, stream, has_data = packed.lstrip(b"\0"), new_stream(_GZIP_WINDOW_BITS), False
                    has_data = has_data or bool(packed)
                    if piece := stream.decompress(packed, CHUNK_BYTES):
                        yielded_bytes += len(piece)
                        yield piece
                    packed = stream.unused_data if stream.eof else stream.unconsumed_tail
            if has_data and not stream.eof:
                text.lost = f"the gzip stream ends early, after {read_bytes:,} bytes"
                if piece := stream.flush():
                    yield piece
        except stream_error as damage:
            text.lost = f"the gzip stream is damaged within its first {read_bytes:,} bytes ({damage})"
    if "damaged" in text.lost:  # the text between the last yielded piece and the damage
        yield from _inflate_damaged(open_file, yielded_bytes, read_bytes - _PACKED_CHUNK_BYTES)


def _inflate_damaged(open_file: Callable[[], IO[bytes]], skip_bytes: int, damage_offset: int) -> Iterator[bytes]:
    """Yields the text of a damaged stream after its first `skip_bytes` bytes. Near the damage, at the packed byte
    `damage_offset`, the stream is fed a few bytes at a time, since the call that reaches the damage returns nothing."""
    stream = zlib.decompressobj(_GZIP_WINDOW_BITS)
    with open_file() as file, suppress(zlib.error):
        while packed := file.read(
            _PACKED_CHUNK_BYTES if file.tell() < damage_offset - _PACKED_CHUNK_BYTES else _RESCUE_CHUNK_BYTES
        ):
            while packed:
                if stream.eof:
                    packed, stream = packed.lstrip(b"\0"), zlib.decompressobj(_GZIP_WINDOW_BITS)
                piece = stream.decompress(packed, CHUNK_BYTES)
                if len(piece) > skip_bytes:
                    yield piece[skip_bytes:]
                skip_bytes -= min(skip_bytes, len(piece))
                packed = stream.unused_data if stream.eof else stream.unconsumed_tail


def _open_members(path: Path, limit: int) -> list[UnpackedText]:
    """The documents in a zip archive: its members with a profiler's ending, or all if none has one. `limit`: maximum of
    unpacked bytes of each. Raises `BadFile` if the archive is damaged, empty or has too many members."""
    try:
        with zipfile.ZipFile(path) as archive:
            files = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError) as error:
        raise DamagedFile(f"{path}: the zip archive is damaged: {error}.", "Was the copy cut short?") from error
    if not files:
        raise BadFile(f"{path}: the zip archive holds no file.")
    if len(files) > _MAX_MEMBERS:
        raise FileTooLarge(f"{path}: the zip archive holds {len(files):,} files, more than {_MAX_MEMBERS:,}.")
    names = [name for name in files if name.removesuffix(".gz").endswith(ENDINGS)] or files
    return [UnpackedText(path, name, _read_member(name), limit) for name in names]


def _read_member(name: str) -> Callable[[UnpackedText], Iterator[bytes]]:
    """The function that yields the pieces of a member of a zip archive."""

    def pieces(text: UnpackedText) -> Iterator[bytes]:
        """The bytes of the archive's member, unpacked twice if it is gzipped; damage ends them and is stated in
        `text.lost`."""
        try:
            with zipfile.ZipFile(text.path) as archive:
                if name.endswith(".gz"):
                    yield from _inflate(text, lambda: archive.open(name))
                    return
                with archive.open(name) as file:
                    while piece := file.read(CHUNK_BYTES):
                        yield piece
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError) as error:
            # Encrypted or of an unsupported method (both RuntimeError), or a checksum that does not match.
            text.lost = f"{name} in the zip archive is damaged or encrypted ({error})"

    return pieces


def _choose_inflater() -> tuple[Any, Any]:
    """(factory of decompression streams, class of the error that they raise): those of isal if it is installed, as it
    is faster, else zlib's."""
    try:
        from isal import isal_zlib  # the extra `fast`
    except ImportError:
        return zlib.decompressobj, zlib.error
    return isal_zlib.decompressobj, isal_zlib.error
