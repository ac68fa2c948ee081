"""The index as one SQLite file beside the run folders."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from trainyard.store import tables
from trainyard.store.index import Indexed

_HERE = ""
"""The file serves one store, which needs no name."""


class LocalBase:
    """A damaged file is thrown away: its rows are read anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def indexed(self) -> dict[str, Indexed]:
        if not self._path.exists():
            return {}
        try:
            with closing(self._connect()) as base:
                return tables.select(base, _HERE, "?")
        except sqlite3.OperationalError:  # no table yet, held by another process, on a disk that cannot be written
            return {}
        except (sqlite3.DatabaseError, msgspec.MsgspecError):
            self._path.unlink(missing_ok=True)
            return {}

    def keep(self, read: Mapping[str, Indexed], gone: Iterable[str]) -> None:
        try:
            with closing(self._connect()) as base, base:
                base.execute("BEGIN IMMEDIATE")
                base.execute(tables.CREATE)
                tables.write(base, _HERE, "?", read, gone)
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=5)
