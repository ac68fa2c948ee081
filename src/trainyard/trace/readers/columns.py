"""Reduced profiles: the columns of one file's ranks, compressed, for sending instead of the profiler's file.

A reduced profile has every row and value of `Events`, so that it is booked to exactly the same ledgers and findings; it
lacks the text around them and the values of the file that no rule reads. It is a magic line, then xz of the ranks, each
as the length of its columns in 8 bytes and the columns (`embedded.py`). Decoding runs no code, is bounded by the
reader's limit, and checks the columns.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path

from trainyard import units
from trainyard.errors import BadFile, DamagedFile, FileTooLarge
from trainyard.events import Events
from trainyard.formats.atomic import replacing_own
from trainyard.formats.regular_files import unreadable
from trainyard.plugins import AS_WRITTEN, ReadOptions
from trainyard.trace.readers import embedded, whole_files
from trainyard.trace.readers.recognise import REDUCED_PROFILE_MAGIC, recognise

ENDING = ".profile"
_PRESET = 1
"""Level of compression: the next ones take four times as long for a tenth less."""
_LENGTH_BYTES = 8
_MAX_DICTIONARY_BYTES = 64 << 20
_AGAIN = "Reduce the profiler's file again, or copy the complete one."


class Columns:
    """The `Reader` of reduced profiles."""

    def sniff(self, path: Path) -> bool:
        return recognise(path).reader == "columns"

    def read(self, path: Path, options: ReadOptions = AS_WRITTEN) -> tuple[Events, ...]:
        """The ranks in the file, as they were written. Step marks are those of the original file, whatever `options`
        states. Raises `BadFile`: damaged, or larger than the limit, packed or unpacked."""
        limit = min(options.limit, whole_files.MAX_BYTES)
        whole_files.size(path, limit)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        unpacked = memoryview(_unpack(path, data.removeprefix(REDUCED_PROFILE_MAGIC), limit))
        ranks: list[Events] = []
        while unpacked:
            length = int.from_bytes(unpacked[:_LENGTH_BYTES], "little")
            if not 0 < length <= len(unpacked) - _LENGTH_BYTES:
                raise DamagedFile(f"{path}: the columns of a rank are cut short.", _AGAIN)
            ranks.append(embedded.decode_profile(path, unpacked[_LENGTH_BYTES : _LENGTH_BYTES + length]))
            unpacked = unpacked[_LENGTH_BYTES + length :]
        if not ranks:
            raise BadFile(f"{path}: the profile has no rank.", _AGAIN)
        return tuple(ranks)


def write_profile(path: Path, ranks: Sequence[Events]) -> None:
    """Write the reduced profile of the ranks of one file. Raises `OSError`."""
    profiles = [embedded.encode_profile(events) for events in ranks]
    data = b"".join(len(profile).to_bytes(_LENGTH_BYTES, "little") + profile for profile in profiles)
    with replacing_own(path) as partial:
        partial.write_bytes(REDUCED_PROFILE_MAGIC + lzma.compress(data, preset=_PRESET))


def _unpack(path: Path, data: bytes, limit: int) -> bytes:
    """Unpack the xz stream of a reduced profile. Raises `DamagedFile`, or `FileTooLarge` beyond `limit` bytes."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY_BYTES)
    try:
        unpacked = decoder.decompress(data, max_length=limit + 1)
    except lzma.LZMAError as error:
        raise DamagedFile(f"{path}: the profile cannot be unpacked: {error}.", _AGAIN) from error
    if len(unpacked) > limit:
        raise FileTooLarge(f"{path}: more than {units.show_size(limit)} unpacked.", "Record fewer steps.")
    if not decoder.eof or decoder.unused_data:
        raise DamagedFile(f"{path}: the profile is cut short, or has more after its end.", _AGAIN)
    return unpacked
