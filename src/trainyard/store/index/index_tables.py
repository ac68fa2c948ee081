"""The index's one table, in SQL that SQLite and PostgreSQL both take, and how rows go in and come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from trainyard.fault_points import fault_point
from trainyard.store.index.run_index import Indexed, RunRow

# The number goes with the columns: a version that changes them makes a table of its own next to this one.
TABLE = "trainyard_runs_2"
CREATE = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
  store TEXT NOT NULL, id TEXT NOT NULL, started TEXT NOT NULL, job TEXT NOT NULL, layout TEXT NOT NULL,
  state TEXT NOT NULL, step_ns BIGINT NOT NULL, tokens_per_s DOUBLE PRECISION NOT NULL, revision TEXT NOT NULL,
  host TEXT NOT NULL, tags TEXT NOT NULL, stamp TEXT NOT NULL, PRIMARY KEY (store, id)
)
"""
_COLUMNS = (
    "id", "started", "job", "layout", "state", "step_ns", "tokens_per_s", "revision", "host", "tags", "stamp",
)  # fmt: skip
_SET_COLUMNS = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])


class Connection(Protocol):
    """What `sqlite3` and `psycopg` connections have in common here."""

    def execute(self, query: Any, params: Any = ..., /) -> Any: ...


def select(connection: Connection, store: str, placeholder: str) -> dict[str, Indexed]:
    """The rows of a store by run id.

    `store`: the store's name in the table; `placeholder`: the text by which this database marks a parameter of a query,
    `?` or `%s`. Raises `msgspec.MsgspecError` for a row that cannot be decoded, and the errors of the database.
    """
    # Only this file's own words are put into the text of a query; what comes from outside is a parameter.
    query = f"SELECT {', '.join(_COLUMNS)} FROM {TABLE} WHERE store = {placeholder}"  # noqa: S608
    return {cells[0]: _indexed(cells) for cells in connection.execute(query, (store,)).fetchall()}


def write(
    connection: Connection,
    store: str,
    placeholder: str,
    rows_by_id: Mapping[str, Indexed],
    deleted_ids: Iterable[str],
    error_types: tuple[type[Exception], ...],
) -> dict[str, str]:
    """Delete the rows of `deleted_ids`, then write `rows_by_id`, inside the caller's transaction.

    Returns run id -> reason, for the rows that the database cannot store. `store`, `placeholder`: as in `select`;
    `error_types`: the errors that this database raises for a value it cannot store. A batch that fails is retried row
    by row, so that the other rows are kept.
    """
    for id in deleted_ids:
        connection.execute(f"DELETE FROM {TABLE} WHERE store = {placeholder} AND id = {placeholder}", (store, id))  # noqa: S608
    refused: dict[str, str] = {}
    if _write_rows(connection, store, placeholder, rows_by_id.values(), error_types):
        for id, row in rows_by_id.items():
            if reason := _write_rows(connection, store, placeholder, [row], error_types):
                refused[id] = reason
    fault_point("index.written")
    return refused


def _write_rows(
    connection: Connection,
    store: str,
    placeholder: str,
    rows: Iterable[Indexed],
    error_types: tuple[type[Exception], ...],
) -> str:
    """Write all of `rows` and return an empty string, or write none of them and return the reason.

    A row of the same run is replaced. A savepoint of the transaction undoes a batch that fails. The other arguments are
    as in `write`.
    """
    marks = ", ".join([placeholder] * (1 + len(_COLUMNS)))
    upsert = (
        f"INSERT INTO {TABLE} (store, {', '.join(_COLUMNS)}) VALUES ({marks}) "  # noqa: S608
        f"ON CONFLICT (store, id) DO UPDATE SET {_SET_COLUMNS}"
    )
    connection.execute("SAVEPOINT rows")
    try:
        for row in rows:
            connection.execute(upsert, (store, *_cells(row)))
    except error_types as error:
        connection.execute("ROLLBACK TO SAVEPOINT rows")
        connection.execute("RELEASE SAVEPOINT rows")
        return " ".join(str(error).split()).rstrip(".") or type(error).__name__
    connection.execute("RELEASE SAVEPOINT rows")
    return ""


def _cells(indexed: Indexed) -> tuple[str | int | float, ...]:
    """The values of `_COLUMNS` for a row."""
    row = indexed.row
    texts = (row.id, row.started, row.job, row.layout, row.state)
    tags = msgspec.json.encode(indexed.tag_times).decode()
    return (*texts, row.step_ns, row.tokens_per_s, row.revision, row.host, tags, indexed.stamp)


def _indexed(cells: Any) -> Indexed:
    """The row with these values of `_COLUMNS`."""
    fields = dict(zip(_COLUMNS, cells))
    tag_times = msgspec.json.decode(fields.pop("tags"), type=dict[str, str])
    return Indexed(stamp=fields.pop("stamp"), row=msgspec.convert(fields, RunRow), tag_times=tag_times)
