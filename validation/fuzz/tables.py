"""Changes to SQLite databases made by SQLite: rows, columns and tables, with the file's structure kept whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from random import Random
from typing import Any

from validation.fuzz.trees import NUMBERS, TEXTS, Words

_STEPS = 1000
"""Times ten thousand steps of SQLite that a change may take: a damaged tree can be a ring."""


def database(data: bytes, chance: Random, words: Words) -> bytes:
    left = [_STEPS]

    def enough() -> bool:
        left[0] -= 1
        return left[0] < 0

    try:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            connection.deserialize(data)
            connection.set_progress_handler(enough, 10_000)
            schema = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            tables = [name for (name,) in schema if isinstance(name, str)]  # a damaged schema holds bytes and numbers
            for _ in range(chance.choice((1, 1, 2, 4))):
                _change(connection, chance.choice(tables), chance, words)
            return connection.serialize()
    except (sqlite3.Error, IndexError, OverflowError, UnicodeError, MemoryError) as error:
        raise ValueError from error


def _change(connection: sqlite3.Connection, table: str, chance: Random, words: Words) -> None:
    name = _quoted(table)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
    column = _quoted(chance.choice(columns))
    action = chance.randrange(12)
    # The names are those of the seed databases and of earlier mutations of them.
    if action < 6:
        rowid = f"rowid = (SELECT rowid FROM {name} ORDER BY random() LIMIT 1)"  # noqa: S608
        connection.execute(f"UPDATE {name} SET {column} = ? WHERE {rowid}", (_value(chance, words),))  # noqa: S608
    elif action == 6:
        marks = ", ".join("?" * len(columns))
        connection.execute(f"INSERT INTO {name} VALUES ({marks})", [_value(chance, words) for _ in columns])  # noqa: S608
    elif action == 7:
        connection.execute(f"DELETE FROM {name} WHERE random() % 3 = 0")  # noqa: S608
    elif action == 8:
        connection.execute(f"ALTER TABLE {name} RENAME COLUMN {column} TO {_quoted(chance.choice(words))}")
    elif action == 9:
        connection.execute(f"ALTER TABLE {name} DROP COLUMN {column}")
    elif action == 10:
        connection.execute(f"ALTER TABLE {name} RENAME TO {_quoted(chance.choice(words))}")
    else:
        connection.execute(f"DROP TABLE {name}")
        if chance.random() < 0.5:
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM StringIds")  # noqa: S608


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _value(chance: Random, words: Words) -> Any:
    kind = chance.randrange(10)
    if kind < 4:
        return chance.randrange(3000)
    if kind < 6:
        value = chance.choice(NUMBERS)
        return value if isinstance(value, float) or abs(value) < 2**63 else 2**63 - 1
    if kind < 8:
        return chance.choice(words).encode("utf-8", "replace").decode()
    return chance.choice((None, b"", b"\xff\xfe", *(text.encode("utf-8", "replace") for text in TEXTS)))
