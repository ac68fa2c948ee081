"""The index of a team's store in a PostgreSQL database, which many machines can write at once (extra `postgres`).

Each store has rows of its own in one table, by the name that the file `store.id` in its root gives it: a store that
several machines mount is one store wherever they mount it, and one database serves any number of stores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from trainyard.errors import BadFile, BadInput, MissingLibrary
from trainyard.fault_points import fault_point
from trainyard.redact import HIDDEN, redact
from trainyard.store.disk_space import writing
from trainyard.store.index import index_tables
from trainyard.store.index.run_index import Indexed
from trainyard.store.unfinished_writes import writer

_TIMEOUT_S = 5
_UNESCAPED = re.compile(r"[^/?#:@]*:(?!\d{0,5}[/?#])[^/?#@]*[/?#].*@")
"""After `://`: a password that ends behind what should be the end of the host."""


class PostgresBase:
    """`url`: postgresql://user@host/database, as libpq reads it; a password is better kept in its `~/.pgpass`.

    Raises `BadInput` for another kind of URL and `MissingLibrary` without psycopg."""

    def __init__(self, url: str, root: Path) -> None:
        """`root`: the folder of the store, whose name in the database is in its `store.id`. Does not connect yet."""
        scheme, _, rest = url.partition("://")
        self._shown = redact(url).partition("?")[0].replace(f"{HIDDEN}@", "", 1)
        if scheme.lower() not in ("postgresql", "postgres"):
            raise BadInput(
                f"TRAINYARD_INDEX is {self._shown}, which is no PostgreSQL database.",
                "Give postgresql://USER@HOST/DATABASE, or unset it for a file beside the runs.",
            )
        if _UNESCAPED.match(rest):
            # libpq would take a part of the password for a port, and repeat it in its message.
            raise BadInput(
                f"TRAINYARD_INDEX is {self._shown}: its password has a '/', '?' or '#'.",
                "Write them as %2F, %3F and %23, or keep the password in ~/.pgpass.",
            )
        try:
            import psycopg
        except ImportError as error:
            raise MissingLibrary(
                "TRAINYARD_INDEX wants psycopg, which is not installed.",
                "Run `pip install 'trainyard[postgres]'`, or unset it for a file beside the runs.",
            ) from error
        self._psycopg, self._url, self._root = psycopg, url, root

    def indexed(self) -> dict[str, Indexed]:
        """The store's rows by run id; empty if there is no table or a row cannot be decoded. Raises `OSError`."""
        with self._connect() as connection:
            if not self._has_table(connection):
                return {}
            try:
                return index_tables.select(connection, store_id(self._root), "%s")
            except msgspec.MsgspecError:  # another program's table, or altered by hand: every row is rewritten
                return {}

    def keep(self, rows_by_id: Mapping[str, Indexed], deleted_ids: Iterable[str]) -> dict[str, str]:
        """Deletes the rows of `deleted_ids` and writes `rows_by_id`, as `Base.keep`: returns refused ids with the
        reasons. Raises `OSError`."""
        # DataError: a NUL, a number out of range, a character that the database's encoding lacks.
        error_types = (self._psycopg.DataError, self._psycopg.IntegrityError, UnicodeEncodeError)
        with self._connect() as connection:
            # One writer at a time, or two could wait for each other's rows; also two cannot make a table at once.
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{_TIMEOUT_S}s",))
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (index_tables.TABLE,))
            if not self._has_table(connection):  # IF NOT EXISTS needs the right to create even if the table exists
                connection.execute(index_tables.CREATE)
            return index_tables.write(connection, store_id(self._root), "%s", rows_by_id, deleted_ids, error_types)

    def _has_table(self, connection: Any) -> bool:
        return connection.execute("SELECT to_regclass(%s)", (index_tables.TABLE,)).fetchone()[0] is not None

    @contextmanager
    def _connect(self) -> Iterator[Any]:
        """A connection whose block is one transaction. Raises `PermissionError` if this user may not write."""
        psycopg = self._psycopg
        try:
            # UTF-8 whatever the server's encoding and PGCLIENTENCODING: the server converts text, or refuses it.
            with psycopg.connect(self._url, connect_timeout=_TIMEOUT_S, client_encoding="utf8") as connection:
                yield connection
        except (psycopg.Error, UnicodeEncodeError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            read_only = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
            error_type = PermissionError if isinstance(error, read_only) else OSError
            raise error_type(f"the index {self._shown} cannot be used: {redact(reason)}.") from error


def store_id(root: Path) -> str:
    """The store's name in the database: the contents of `store.id` in its root. Raises `BadFile` if it cannot be read.

    The first process that needs it writes a random one; a hard link makes sure that only one of several processes does.
    """
    path = root / "store.id"
    if not path.exists():
        draft = root / f".store.id.{writer()}"
        with writing(root):
            draft.write_text(f"{os.urandom(8).hex()}\n", "ascii")
            fault_point("index.named")
            try:
                os.link(draft, path)  # fails if another process was first
            except FileExistsError:
                pass
            finally:
                draft.unlink()
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read: {error}.", "Delete it: the next list writes a new one.") from error
