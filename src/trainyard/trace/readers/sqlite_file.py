"""Opens the file of an SQLite database that may be packed, and checks that it is complete.

Source of the header's fields: https://www.sqlite.org/fileformat2.html#the_database_header
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import DamagedFile
from trainyard.formats.regular_files import unreadable
from trainyard.trace.readers import whole_files

_HEADER = struct.Struct(">16xH6xII60xI")
"""Page size, change counter, number of pages, and the change counter for which that number is valid."""
_LARGEST_PAGE = 1
"""Stands for a page of 65,536 bytes, which the field cannot hold."""


@contextmanager
def database_file(path: Path, limit: int) -> Iterator[Path]:
    """The path of a plain, complete database with the file's contents: the file itself, or a temporary one if it is
    packed. SQLite opens a database whose last pages are missing without an error. Raises `BadFile`, and `DamagedFile`
    for a database that is cut short."""
    with whole_files.plain_file(path, limit) as file:
        try:
            file_bytes = file.stat().st_size
            with file.open("rb") as opened:
                head = opened.read(_HEADER.size)
        except OSError as error:
            raise unreadable(path, error) from error
        stated_bytes = _stated_bytes(head)
        if file_bytes < stated_bytes:
            raise DamagedFile(
                f"{path}: the database is cut short: {file_bytes:,} of {stated_bytes:,} bytes.",
                "Copy the complete file again, or export it again.",
            )
        yield file


def _stated_bytes(head: bytes) -> int:
    """The size of the database by its header, in bytes; 0 if the header does not state it. `head`: the first bytes of
    the file."""
    if len(head) < _HEADER.size:
        return 0
    page_bytes, changes, pages, valid_for = _HEADER.unpack(head)
    if changes != valid_for:  # an old version of SQLite wrote the file, and did not update the number of pages
        return 0
    return pages * (65536 if page_bytes == _LARGEST_PAGE else page_bytes)
