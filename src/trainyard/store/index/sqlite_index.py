"""The index as an SQLite file in the folder of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from trainyard.store.index import index_tables
from trainyard.store.index.run_index import Indexed

_STORE_NAME = ""
"""The file serves one store, which needs no name."""
_REFUSED_VALUE_ERRORS = (sqlite3.DataError, sqlite3.IntegrityError, OverflowError, UnicodeEncodeError)
"""Raised for a value that SQLite cannot store: too long, NaN (stored as NULL), beyond 64 bits, a lone surrogate."""
_READ_ONLY_CODES = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


_LOCK_TIMEOUT_S = 5


class LocalBase:
    """An SQLite file of indexed rows, as `Base`. A damaged file is deleted; its rows are read again from the
    folders."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def indexed(self) -> dict[str, Indexed]:
        """All rows by run id; empty if there is no table yet or the file is locked. Deletes a damaged file."""
        if not self._path.exists():
            return {}
        try:
            with closing(self._connect()) as connection:
                return index_tables.select(connection, _STORE_NAME, "?")
        except sqlite3.OperationalError:  # no table yet, held by another process, on a disk that cannot be written
            return {}
        except (sqlite3.DatabaseError, msgspec.MsgspecError):
            self._path.unlink(missing_ok=True)
            return {}

    def keep(self, rows_by_id: Mapping[str, Indexed], deleted_ids: Iterable[str]) -> dict[str, str]:
        """Deletes the rows of `deleted_ids` and writes `rows_by_id` in one transaction, as `Base.keep`; returns refused
        ids with the reasons. Raises `OSError`; `PermissionError` if the file is read-only."""
        try:
            with closing(self._connect()) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(index_tables.CREATE)
                return index_tables.write(connection, _STORE_NAME, "?", rows_by_id, deleted_ids, _REFUSED_VALUE_ERRORS)
        except sqlite3.Error as error:
            read_only = getattr(error, "sqlite_errorcode", 0) & 0xFF in _READ_ONLY_CODES
            raise (PermissionError if read_only else OSError)(f"{self._path}: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)
