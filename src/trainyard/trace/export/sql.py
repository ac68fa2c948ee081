"""SQL over a measured trace: an in-memory DuckDB database that contains only these tables.

A query cannot access files, the network, extensions or Python variables, and cannot change its own limits.
"""

from __future__ import annotations

from threading import Timer
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainyard import units
from trainyard.errors import BadInput, MissingLibrary
from trainyard.trace.export.arrow_stream import Column, Words
from trainyard.trace.export.columns import Columns
from trainyard.trace.export.schema import TABLES
from trainyard.trace.export.trace_tables import tables_by_rank
from trainyard.trace.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_ROWS, MAX_SECONDS, MAX_MEMORY = 10_000, 60, "2GB"
"""Limits of one query: rows returned, seconds, memory of the database with its tables."""
_SQL_TYPES = {"bool": "BOOLEAN", "int32": "INTEGER", "int64": "BIGINT", "float64": "DOUBLE"}
_SAFE_SETTINGS = {
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": MAX_MEMORY,
    "temp_directory": "",
    "pandas_analyze_sample": "0",
}


class Answer(NamedTuple):
    """The rows of a query, as Python values. `more`: there are more rows than the limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool


def query(measured: MeasuredTrace, sql: str, max_rows: int = MAX_ROWS, seconds: float = MAX_SECONDS) -> Answer:
    """Runs one SELECT over the tables `schema.TABLES` of a trace, for at most `max_rows` rows and `seconds`.

    Only tables whose name occurs in the query are built (all, if none does). Raises `MissingLibrary` without duckdb,
    `BadInput` for a query that is invalid or is not a SELECT, with a hint that lists the tables, or takes too long.
    """
    lowered = sql.lower()
    with _open_database() as database:
        for tables in tables_by_rank(measured, [name for name in TABLES if name in lowered] or TABLES):
            for name, table in tables.items():
                _append_table(database, name, table)
        # From here on, no setting can be changed and nothing outside the database accessed.
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            return _run_query(database, sql, max_rows, seconds)
        except BadInput as error:
            raise BadInput(error.message, error.next_step or _list_tables(measured)) from error


def _open_database() -> DuckDBPyConnection:
    """An empty DuckDB database in memory. Raises `MissingLibrary`."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingLibrary("SQL queries need DuckDB.", "Install it: pip install 'trainyard[sql]'.") from error
    return duckdb.connect(":memory:", config=dict(_SAFE_SETTINGS))


def _append_table(database: DuckDBPyConnection, name: str, table: Columns) -> None:
    """Appends the rows of `table` to the table `name` of the database, which is created if needed.

    Table and column names come from `schema`, not from users. Missing numbers are passed as an additional column of
    flags for each column that may have some.
    """
    definitions = ", ".join(f'"{column}" {_sql_type(values)}' for column, values in table.items())
    database.execute(f'CREATE TABLE IF NOT EXISTS "{name}" ({definitions})')
    columns_and_masks: dict[str, np.ndarray] = {}
    expressions: list[str] = []
    for column, values in table.items():
        columns_and_masks[column] = values.texts() if isinstance(values, Words) else np.asarray(values)
        expressions.append(f'"{column}"')
        if isinstance(values, np.ma.MaskedArray):
            # Not every version of DuckDB respects an array's mask.
            columns_and_masks[f"no {column}"] = np.ma.getmaskarray(values)
            expressions[-1] = f'CASE WHEN NOT "no {column}" THEN "{column}" END'
    database.register("added", columns_and_masks)
    database.execute(f'INSERT INTO "{name}" SELECT {", ".join(expressions)} FROM added')  # noqa: S608
    database.unregister("added")


def _sql_type(column: Column) -> str:
    return "VARCHAR" if isinstance(column, Words) else _SQL_TYPES[column.dtype.name]


def _run_query(database: DuckDBPyConnection, sql: str, max_rows: int, seconds: float) -> Answer:
    """Runs one SELECT within the limits; a timer interrupts it after `seconds`.

    Raises `BadInput` for a query that takes longer, is not exactly one SELECT statement, or that DuckDB refuses.
    """
    import duckdb

    stop = Timer(seconds, database.interrupt)
    stop.start()
    try:
        kinds = [statement.type.name for statement in database.extract_statements(sql)]
        if kinds == ["SELECT"]:
            result = database.execute(sql)
            rows = result.fetchmany(max_rows + 1)
            columns = tuple(str(column[0]) for column in result.description or ())
            return Answer(columns, tuple(tuple(row) for row in rows[:max_rows]), len(rows) > max_rows)
    except duckdb.InterruptException as error:
        raise BadInput(f"the query took more than {units.show_time(seconds * 1e9)}.", "Query less data.") from error
    except (duckdb.Error, RuntimeError) as error:
        raise BadInput(f"DuckDB cannot answer: {str(error).strip()}") from error
    finally:
        stop.cancel()
    raise BadInput(f"a query is one SELECT statement, but this is {', '.join(kinds) or 'nothing'}.")


def _list_tables(measured: MeasuredTrace) -> str:
    first = next(tables_by_rank(measured))
    return "Tables:\n" + "\n".join(f"  {name}({', '.join(table.names)})" for name, table in first.items())
