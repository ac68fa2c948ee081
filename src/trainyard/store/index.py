"""A sqlite file beside the run folders, so that a list need not read them all.

Nothing is only here: whatever is missing, corrupt or behind the folders is rebuilt from them, and where
the file cannot be used (read-only place, another process holding it) an index in memory does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from trainyard.errors import BadFile
from trainyard.store import folder as folders
from trainyard.store.summary import summarise

_VERSION = 1
_TABLES = """
CREATE TABLE runs (id TEXT PRIMARY KEY, stamp TEXT NOT NULL, row BLOB NOT NULL);
CREATE TABLE tags (tag TEXT NOT NULL, given TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tag, id));
"""
_T = TypeVar("_T")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What `trainyard runs` lists. `step_ns` and `tokens_per_s` are 0 where nothing was measured."""

    id: str
    started: str
    job: str
    layout: str
    state: str
    step_ns: int
    tokens_per_s: float
    tags: tuple[str, ...] = ()


class Index:
    """`runs` is the folder of run folders; `say` hears of folders that cannot be read."""

    def __init__(self, path: Path, runs: Path, say: Callable[[str], None]) -> None:
        self._path, self._runs, self._say = path, runs, say

    def rows(self) -> list[Row]:
        """One row a run, newest first, after catching up with the folders."""
        return self._with(self._rows)

    def rebuild(self) -> int:
        """Throws the file away and reads every folder; how many runs there are."""
        self._path.unlink(missing_ok=True)
        return len(self.rows())

    def _with(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return self._on(self._path, work)
        except sqlite3.OperationalError:  # held by another process, or on a read-only disk
            return self._on(None, work)
        except sqlite3.DatabaseError:
            try:
                self._path.unlink(missing_ok=True)
            except OSError:
                return self._on(None, work)
            return self._on(self._path, work)

    def _on(self, path: Path | None, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with closing(sqlite3.connect(path or ":memory:", timeout=5)) as base, base:
            version = base.execute("PRAGMA user_version").fetchone()[0]
            if version != _VERSION:
                for table in ("runs", "tags"):
                    base.execute(f"DROP TABLE IF EXISTS {table}")
                base.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION};")
            self._catch_up(base)
            return work(base)

    def _catch_up(self, base: sqlite3.Connection) -> None:
        known: dict[str, str] = dict(base.execute("SELECT id, stamp FROM runs"))
        there = {path.name: _stamp(path) for path in run_folders(self._runs)}
        for gone in known.keys() - there.keys():
            _forget(base, gone)
        for name in sorted(there):
            if known.get(name) != there[name]:
                self._read(base, name, there[name])

    def _read(self, base: sqlite3.Connection, name: str, stamp: str) -> None:
        _forget(base, name)
        try:
            row, tags = _row(self._runs / name), folders.read_tags(self._runs / name)
        except BadFile as error:
            self._say(f"passed over: {error}")
            return
        base.execute("INSERT INTO runs VALUES (?, ?, ?)", (name, stamp, msgspec.json.encode(row)))
        base.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(tag, given, name) for tag, given in tags.items()])

    def _rows(self, base: sqlite3.Connection) -> list[Row]:
        # A tag in two folders (a move that was killed half-way) belongs to the one that got it last.
        owner: dict[str, str] = dict(base.execute("SELECT tag, id FROM tags ORDER BY given, id"))
        rows = [msgspec.json.decode(data, type=Row) for (data,) in base.execute("SELECT row FROM runs")]
        tagged = [
            msgspec.structs.replace(row, tags=tuple(sorted(tag for tag, id in owner.items() if id == row.id)))
            for row in rows
        ]
        return sorted(tagged, key=lambda row: (row.started, row.id), reverse=True)


def run_folders(runs: Path) -> list[Path]:
    """The folders that hold a run.json; links, hidden and unfinished folders are none."""
    if not runs.is_dir():
        return []
    return [
        path
        for path in sorted(runs.iterdir())
        if not path.name.startswith(".") and not path.is_symlink() and (path / "run.json").is_file()
    ]


def _stamp(folder: Path) -> str:
    """Changes whenever one of the files that a row is made of is written."""
    parts = []
    for name in ("run.json", "tags.json", "samples/rank0.jsonl"):
        try:
            stat = (folder / name).stat()
            parts.append(f"{stat.st_mtime_ns}.{stat.st_size}.{stat.st_ino}")
        except FileNotFoundError:
            parts.append("-")
    return " ".join(parts)


def _row(folder: Path) -> Row:
    run = folders.read(folder)
    figures = summarise(run)
    return Row(
        id=folder.name,
        started=run.started,
        job=run.job.name,
        layout=str(run.job.layout),
        state=run.state,
        step_ns=figures.step_ns,
        tokens_per_s=figures.tokens_per_s,
    )


def _forget(base: sqlite3.Connection, name: str) -> None:
    base.execute("DELETE FROM runs WHERE id = ?", (name,))
    base.execute("DELETE FROM tags WHERE id = ?", (name,))
