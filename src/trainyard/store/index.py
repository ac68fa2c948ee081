"""What a list of runs needs to know, remembered in a database so that it need not read every folder.

Nothing is only there: a row counts as long as its folder's stamp is the one it was read at, every other folder is
read, and what was read is written back. So a database that is missing, damaged, held or behind costs time, never truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from trainyard.errors import BadFile
from trainyard.store import folder as folders
from trainyard.store.summary import summarise


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


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it was read when the folder's stamp was `stamp`. `given`: tag -> when this folder got it."""

    stamp: str
    row: Row
    given: dict[str, str]


class Base(Protocol):
    """A database of indexed rows. Both raise `OSError` where it cannot be used now."""

    def indexed(self) -> dict[str, Indexed]:
        """All rows, by id."""
        ...

    def keep(self, read: Mapping[str, Indexed], gone: Iterable[str]) -> None:
        """Writes the rows in `read` over those of the same id, and forgets those in `gone`: all of it or nothing."""
        ...


class Index:
    """`runs` is the folder of run folders; `say` hears of folders that cannot be read, and of a `base` that cannot."""

    def __init__(self, base: Base, runs: Path, say: Callable[[str], None]) -> None:
        self._base, self._runs, self._say = base, runs, say

    def rows(self) -> list[Row]:
        """One row a run, newest first."""
        try:
            known = self._base.indexed()
        except OSError as error:
            self._say(f"{error} Every run's folder is read instead.")
            known = {}
        stamps = {path.name: _stamp(path) for path in run_folders(self._runs)}
        read = self._read(name for name, stamp in stamps.items() if name not in known or known[name].stamp != stamp)
        current = {name: one for name, one in known.items() if stamps.get(name) == one.stamp}
        gone = known.keys() - current.keys() - read.keys()
        if read or gone:
            with suppress(OSError):  # read-only, or held by another: the next list reads these folders again
                self._base.keep(read, gone)
        return _rows({**current, **read})

    def rebuild(self) -> int:
        """Forgets every row and reads every folder; how many runs there are."""
        with suppress(OSError):
            self._base.keep({}, self._base.indexed())
        return len(self.rows())

    def _read(self, names: Iterable[str]) -> dict[str, Indexed]:
        found = {}
        for name in sorted(names):
            folder = self._runs / name
            try:
                found[name] = Indexed(stamp=_stamp(folder), row=_row(folder), given=folders.read_tags(folder))
            except BadFile as error:
                self._say(f"passed over: {error}")
        return found


def _rows(indexed: Mapping[str, Indexed]) -> list[Row]:
    # A tag in two folders (a move that was killed half-way) belongs to the one that got it last.
    given = sorted((when, id, tag) for id, one in indexed.items() for tag, when in one.given.items())
    owner = {tag: id for _, id, tag in given}
    rows = [
        msgspec.structs.replace(one.row, tags=tuple(sorted(tag for tag in one.given if owner[tag] == id)))
        for id, one in indexed.items()
    ]
    return sorted(rows, key=lambda row: (row.started, row.id), reverse=True)


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
