"""The index's one table, in SQL that SQLite and PostgreSQL both take, and how rows go in and come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from trainyard.fault_points import fault_point
from trainyard.store.index.run_index import Indexed, RunRow

# The number goes with the columns: a version that changes them makes a table of its own next to this one.
TABLE = "trainyard_runs_1"
CREATE = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
  store TEXT NOT NULL, id TEXT NOT NULL, started TEXT NOT NULL, job TEXT NOT NULL, layout TEXT NOT NULL,
  state TEXT NOT NULL, step_ns BIGINT NOT NULL, tokens_per_s DOUBLE PRECISION NOT NULL, tags TEXT NOT NULL,
  stamp TEXT NOT NULL, PRIMARY KEY (store, id)
)
"""
_COLUMNS = ("id", "started", "job", "layout", "state", "step_ns", "tokens_per_s", "tags", "stamp")
_SET = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])


class Connection(Protocol):
    """What `sqlite3` and `psycopg` connections have in common here."""

    def execute(self, query: Any, params: Any = ..., /) -> Any: ...


def select(base: Connection, store: str, mark: str) -> dict[str, Indexed]:
    """The rows of `store`, its name in the table, by run id. `mark`: how this database writes a parameter."""
    # Only this file's own words are put into the text of a query; what comes from outside is a parameter.
    query = f"SELECT {', '.join(_COLUMNS)} FROM {TABLE} WHERE store = {mark}"  # noqa: S608
    return {cells[0]: _indexed(cells) for cells in base.execute(query, (store,)).fetchall()}


def write(
    base: Connection,
    store: str,
    mark: str,
    read: Mapping[str, Indexed],
    gone: Iterable[str],
    refusals: tuple[type[Exception], ...],
) -> dict[str, str]:
    """Deletes the rows in `gone`, then writes those in `read`, inside the caller's transaction.

    Returns the ids of the rows that the database refuses, each with its reason. `store`: its name in the table.
    `mark`: how this database writes a parameter. `refusals` are the errors that this
    database raises for a value it cannot store. A batch that fails is retried row by row, so that the others are kept.
    """
    for id in gone:
        base.execute(f"DELETE FROM {TABLE} WHERE store = {mark} AND id = {mark}", (store, id))  # noqa: S608
    refused: dict[str, str] = {}
    if _refusal(base, store, mark, read.values(), refusals):
        for id, row in read.items():
            if reason := _refusal(base, store, mark, [row], refusals):
                refused[id] = reason
    fault_point("index.written")
    return refused


def _refusal(
    base: Connection, store: str, mark: str, rows: Iterable[Indexed], refusals: tuple[type[Exception], ...]
) -> str:
    """Write all of `rows` and return an empty string, or none of them and return the reason. `mark`, `refusals`: as in
    `write`."""
    marks = ", ".join([mark] * (1 + len(_COLUMNS)))
    upsert = (
        f"INSERT INTO {TABLE} (store, {', '.join(_COLUMNS)}) VALUES ({marks}) "  # noqa: S608
        f"ON CONFLICT (store, id) DO UPDATE SET {_SET}"
    )
    base.execute("SAVEPOINT rows")
    try:
        for row in rows:
            base.execute(upsert, (store, *_cells(row)))
    except refusals as error:
        base.execute("ROLLBACK TO SAVEPOINT rows")
        base.execute("RELEASE SAVEPOINT rows")
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    base.execute("RELEASE SAVEPOINT rows")
    return ""


def _cells(indexed: Indexed) -> tuple[str | int | float, ...]:
    """The values of `_COLUMNS` for a row."""
    row = indexed.row
    texts = (row.id, row.started, row.job, row.layout, row.state)
    tags = msgspec.json.encode(indexed.tag_times).decode()
    return (*texts, row.step_ns, row.tokens_per_s, tags, indexed.stamp)


def _indexed(cells: Any) -> Indexed:
    fields = dict(zip(_COLUMNS, cells))
    tag_times = msgspec.json.decode(fields.pop("tags"), type=dict[str, str])
    return Indexed(stamp=fields.pop("stamp"), row=msgspec.convert(fields, RunRow), tag_times=tag_times)
