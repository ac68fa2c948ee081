"""The tables of a Nsight Systems database: which exist, their rows, and the ids in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainyard.errors import BadFile

WORK_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_MEMCPY",
               "CUPTI_ACTIVITY_KIND_MEMSET")  # fmt: skip
"""Tables of device work."""
AnyRow = tuple[Any, ...]
_THREAD_BITS = 24


class Tables:
    """The database's plain tables. Views and virtual tables are not read. `path`: the file, for messages; `names`: the
    tables' names; `texts`: string id -> string, from the table StringIds: other tables refer to strings by id."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Reads the schema and the table of strings. `connection`: of the database; it must stay open."""
        self.path, self.connection = path, connection
        schema = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        self.names = {name for name, sql in schema if str(sql).lstrip().upper().startswith("CREATE TABLE")}
        self.texts = {ident: str(value) for ident, value in self.rows("StringIds", "id value", "id value")}

    def rows(self, table: str, columns: str, needed: str = "", only: tuple[str, int] | None = None) -> Iterator[AnyRow]:
        """Iterates over the rows of a table as tuples of `columns`, None for a column that the table lacks; no rows if
        the table is missing. `columns`, `needed`: names of columns, separated by spaces; `only`: (a column, the value
        that it must have in a row). Raises `BadFile` if the table lacks a column of `needed`.

        Not a generator: a generator suspended in the middle of a table closes its cursor when it is garbage-collected,
        which raises once the database is closed.
        """
        if table not in self.names:
            return iter(())
        # The names in the queries are constants of this package, not text from the database.
        present = {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}
        missing = sorted(set(needed.split()) - present)
        if missing:
            raise BadFile(f"{self.path}: the table {table} has no column {', '.join(missing)}.", "Export it again.")
        selected = ", ".join(f'"{column}"' if column in present else "NULL" for column in columns.split())
        if only is None:
            return self.connection.execute(f'SELECT {selected} FROM "{table}"')  # noqa: S608
        column, value = only
        if column not in present:
            return iter(())
        return self.connection.execute(f'SELECT {selected} FROM "{table}" WHERE "{column}" = ?', (value,))  # noqa: S608

    def pairs(self, table: str) -> Iterator[tuple[str, str]]:
        """(name, value) of each row of a table of settings."""
        return ((str(name), str(value)) for name, value in self.rows(table, "name value"))

    def text(self, ident: Any, default: str = "") -> str:
        """The string with this id; `default` if there is none."""
        return self.texts.get(ident, default) if type(ident) is int else default


def extract_process(global_id: Any) -> int:
    """The process of a globalTid or globalPid, as one number; 0 if it is not an integer. The id has 8 bits of hardware
    id, 8 of VM id, 24 of process id and 24 of thread id; all but the last are the process."""
    return global_id >> _THREAD_BITS if type(global_id) is int else 0


def extract_pid(process: int) -> int:
    """The operating system's id of a process: the lowest 24 bits of the number from `extract_process`."""
    return process & ((1 << _THREAD_BITS) - 1)
