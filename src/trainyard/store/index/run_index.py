"""The index of a store: one row per run in a database, so that a list need not read every folder.

The folders are the source of truth. A row is used if the stamp of its folder has not changed since the row was read;
every other folder is read, and its row is written back. A database that is missing, damaged, locked or out of date
costs time, but does not change the list. A stamp is a text that changes whenever a file that determines the row does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from trainyard.errors import BadFile
from trainyard.fault_points import fault_point
from trainyard.formats.regular_files import is_regular
from trainyard.record import Run
from trainyard.store import digests, tags
from trainyard.store.run_damage import read_any
from trainyard.store.run_summary import summarise


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `trainyard runs`. `step_ns` and `tokens_per_s` are 0 if nothing was measured. `revision`: the git commit
    of the working tree; `host`: the name of the host that recorded the run; both are empty if unknown. `damage`: the
    files of the run that are missing, altered or unreadable, and the consequence; it is not stored in a database."""

    id: str
    started: str
    job: str
    layout: str
    state: str
    step_ns: int
    tokens_per_s: float
    revision: str = ""
    host: str = ""
    tags: tuple[str, ...] = ()
    damage: str = ""


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """A row that was read when the folder's stamp was `stamp`. `tag_times`: tag -> time at which this folder got it."""

    stamp: str
    row: RunRow
    tag_times: dict[str, str]


class Base(Protocol):
    """A database of indexed rows. Both raise `OSError` if it cannot be used now."""

    def indexed(self) -> dict[str, Indexed]:
        """All rows, by id."""
        ...

    def keep(self, rows_by_id: Mapping[str, Indexed], deleted_ids: Iterable[str]) -> dict[str, str]:
        """Deletes the rows of `deleted_ids`, then writes `rows_by_id` over any of the same id, in one transaction.
        Returns the ids of the rows that this database cannot store, each with the reason; the others are kept. Raises
        `PermissionError` if this user may only read."""
        ...


class Index:
    """The rows of a store. `runs`: the folder of run folders. `say`: is called with messages about folders that cannot
    be read, and about a `base` that cannot be used."""

    def __init__(self, base: Base, runs: Path, say: Callable[[str], None]) -> None:
        self._base, self._runs, self._say = base, runs, say

    def rows(self) -> list[RunRow]:
        """One row per run, newest first. Reads the folders whose rows are missing or out of date, and updates the
        database."""
        return sort_rows(self.entries())

    def entries(self, known: Mapping[str, Indexed] | None = None) -> dict[str, Indexed]:
        """The indexed rows by run id, brought up to date as for `rows`. `known`: an earlier result, which is used in
        place of the database's rows."""
        indexed_rows: Mapping[str, Indexed] = known or {}
        can_write = True
        try:
            if known is None:
                indexed_rows = self._base.indexed()
        except OSError as error:
            self._say(f"{error} Every run's folder is read instead.")
            can_write = False
        stamps = {path.name: folder_stamp(path) for path in run_folders(self._runs)}
        new_rows = self.read_folders(
            name for name, stamp in stamps.items() if name not in indexed_rows or indexed_rows[name].stamp != stamp
        )
        current = {name: row for name, row in indexed_rows.items() if stamps.get(name) == row.stamp}
        deleted_ids = indexed_rows.keys() - current.keys()
        if can_write and (new_rows or deleted_ids):
            self._keep(new_rows, deleted_ids)
        return {**current, **new_rows}

    def _keep(self, new_rows: Mapping[str, Indexed], deleted_ids: Iterable[str]) -> None:
        """Write rows to the database, and delete those of `deleted_ids`; failures are reported, and not raised.

        `new_rows`: by run id. Rows that the database cannot store are read from their folders again by the next list.
        """
        try:
            refused = self._base.keep(new_rows, deleted_ids)
            fault_point("index.committed")
        except PermissionError:  # a user who may list but not write: only slower
            return
        except OSError as error:
            self._say(f"{error} The list is complete, but the index does not have these {len(new_rows)} runs.")
            return
        for id, reason in refused.items():
            self._say(f"{self._runs / id}: the index cannot store this run: {reason}. It is listed from its folder.")

    def rebuild(self) -> int:
        """Drop every row and read every folder; returns the number of runs."""
        with suppress(OSError):
            self._base.keep({}, self._base.indexed())
        return len(self.rows())

    def read_folders(self, names: Iterable[str]) -> dict[str, Indexed]:
        """Read the run folders of these names; return their rows by id. Reports damage, and folders that cannot be
        read, which have no row."""
        rows: dict[str, Indexed] = {}
        for name in sorted(names):
            try:
                rows[name] = _indexed(self._runs / name)
            except BadFile as error:
                self._say(f"passed over: {error}")
            else:
                if rows[name].row.damage:
                    self._say(f"{self._runs / name}: {rows[name].row.damage}")
        return rows


def sort_rows(indexed: Mapping[str, Indexed]) -> list[RunRow]:
    """The rows with their tags, newest run first. A tag of two folders (a move that was killed half-way) belongs to the
    one that got it last. `indexed`: by run id."""
    assignments = sorted((when, id, tag) for id, entry in indexed.items() for tag, when in entry.tag_times.items())
    run_by_tag = {tag: id for _, id, tag in assignments}
    rows = [
        msgspec.structs.replace(entry.row, tags=tuple(sorted(tag for tag in entry.tag_times if run_by_tag[tag] == id)))
        if entry.tag_times
        else entry.row
        for id, entry in indexed.items()
    ]
    return sorted(rows, key=lambda row: (row.started, row.id), reverse=True)


def run_folders(runs: Path) -> list[Path]:
    """The folders that hold a run.json, except links and hidden folders, which are unfinished."""
    if not runs.is_dir():
        return []
    return [
        path
        for path in sorted(runs.iterdir())
        if not path.name.startswith(".") and not path.is_symlink() and is_regular(path / "run.json")
    ]


_STAMPED_FILES = (
    "run.json", "tags.json", digests.FILE, "job.toml", "ledgers.json", "samples", "samples/rank0.jsonl",
)  # fmt: skip
_NO_STAMP = ""
"""A stamp that no folder has: every list reads the row again and reports its damage."""


def folder_stamp(folder: Path) -> str:
    """Modification time (ns), size and inode of each of `_STAMPED_FILES`: changes whenever one of the files that a row
    is made of is written or removed."""
    return " ".join([file_stamp(f"{folder}/{name}") for name in _STAMPED_FILES])


def file_stamp(path: Path | str) -> str:
    """Modification time (ns), size and inode of a file or folder; a dash if it does not exist. The stamp of a run's
    folder begins with that of its run.json."""
    try:
        stat = os.stat(path)  # a store has tens of thousands of these files; Path.stat is slower
    except OSError:
        return "-"
    return f"{stat.st_mtime_ns}.{stat.st_size}.{stat.st_ino}"


def _indexed(folder: Path) -> Indexed:
    """The row of a run folder, with its stamp and tags. Raises `BadFile` for a folder without a readable run.json;
    other damage is noted in the row."""
    if not folder.name.isprintable():  # a file name of other bytes than UTF-8 has lone surrogates
        raise BadFile(f"{folder}: the name of this folder has characters that cannot be shown.", "Rename it.")
    stamp, run = folder_stamp(folder), read_any(folder)
    damage = f"the run is damaged: {run.failure}." if run.state == "damaged" else ""
    try:
        tag_times = tags.read_tags(folder)
    except BadFile as error:
        tag_times, damage = {}, " ".join(filter(None, [damage, f"the run is listed without its tags: {error}"]))
    row = _row(folder.name, run, damage)
    return Indexed(stamp=_NO_STAMP if damage else stamp, row=row, tag_times=tag_times)


def _present_ranks(run: Run) -> str:
    """` (2 of 4 ranks)` for a run that lacks ranks of its job, else empty."""
    missing = len(run.missing_ranks)
    total = sum(len(share.ranks) for share in run.nodes)
    return f" ({total - missing:,} of {total:,} ranks)" if missing else ""


def _row(id: str, run: Run, damage: str) -> RunRow:
    """The row of the run `id`, without its tags. `damage`: as in `RunRow`."""
    summary = summarise(run)
    return RunRow(
        id=id,
        started=run.started,
        job=run.job.name,
        layout=str(run.job.layout) + _present_ranks(run),
        state=run.state,
        step_ns=summary.step_ns,
        tokens_per_s=summary.tokens_per_s,
        revision=run.provenance.code.get("sha", ""),
        host=run.provenance.host.get("name", ""),
        damage=damage,
    )
