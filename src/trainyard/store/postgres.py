"""The index of a team's store in a PostgreSQL database, which many machines can write at once (extra `postgres`).

Each store has rows of its own in one table, by the name that the file `store.id` in its root gives it: a store that
several machines mount is one store wherever they mount it, and one database serves any number of stores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from trainyard.errors import BadFile, BadInput, MissingLibrary
from trainyard.store import tables
from trainyard.store.disk import writing
from trainyard.store.index import Indexed

_PATIENCE_S = 5


class PostgresBase:
    """`url`: postgresql://user@host/database, as libpq reads it; a password is better kept in its `~/.pgpass`.

    Raises `BadInput` for another kind of URL and `MissingLibrary` without psycopg."""

    def __init__(self, url: str, root: Path) -> None:
        if urlsplit(url).scheme not in ("postgresql", "postgres"):
            raise BadInput(
                f"TRAINYARD_INDEX is {_shown(url)}, which is no PostgreSQL database.",
                "Give postgresql://USER@HOST/DATABASE, or unset it for a file beside the runs.",
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
        with self._base() as base:
            if base.execute("SELECT to_regclass(%s)", (tables.TABLE,)).fetchone()[0] is None:
                return {}
            try:
                return tables.select(base, store_id(self._root), "%s")
            except msgspec.MsgspecError:  # somebody else's table, or altered by hand: every row is written anew
                return {}

    def keep(self, read: Mapping[str, Indexed], gone: Iterable[str]) -> None:
        with self._base() as base:
            # One writer at a time, or two could wait for each other's rows; also two cannot make a table at once.
            base.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (tables.TABLE,))
            base.execute(tables.CREATE)
            tables.write(base, store_id(self._root), "%s", read, gone)

    @contextmanager
    def _base(self) -> Iterator[Any]:
        """A connection whose block is one transaction."""
        try:
            with self._psycopg.connect(self._url, connect_timeout=_PATIENCE_S) as base:
                yield base
        except (self._psycopg.Error, UnicodeEncodeError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise OSError(f"the index {_shown(self._url)} cannot be used: {why}.") from error


def store_id(root: Path) -> str:
    """The store's name: what `store.id` in its root says, written there once by whoever comes first."""
    path = root / "store.id"
    if not path.exists():
        own = root / f".store.id.{os.getpid()}.{os.urandom(4).hex()}"
        with writing(root):
            own.write_text(f"{os.urandom(8).hex()}\n", "ascii")
            try:
                os.link(own, path)  # whole, or refused where another was first
            except FileExistsError:
                pass
            finally:
                own.unlink()
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read: {error}.", "Delete it: the next list writes a new one.") from error


def _shown(url: str) -> str:
    """Without its user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}" if parts.scheme else url
