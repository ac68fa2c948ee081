"""Where runs are kept: `runs/<id>/` folders are the truth. An index only finds them fast: `index.sqlite3` beside them,
or the database that $TRAINYARD_INDEX names.

An id is 8 hexadecimal digits of a digest of time, host and chance: short, unique, and in no order;
lists sort by when a run started. A run is named by a prefix of its id, a tag, or its folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec

from trainyard.errors import BadFile, BadInput, UnknownName, nearest
from trainyard.fault_points import fault_point
from trainyard.formats.regular_files import is_regular
from trainyard.record import Run
from trainyard.store import run_damage, tags
from trainyard.store import run_folder as folders
from trainyard.store.disk_space import writing
from trainyard.store.index.postgres import PostgresBase
from trainyard.store.index.run_index import Base, Index, RunRow, run_folders
from trainyard.store.index.sqlite_index import LocalBase
from trainyard.store.tags import check_tag, now
from trainyard.store.unfinished_writes import is_abandoned, writer

_ID = re.compile(r"[0-9a-f]{8}\Z")


def default_root() -> Path:
    """$TRAINYARD_STORE, else $XDG_DATA_HOME/trainyard, else ~/.local/share/trainyard."""
    if place := os.environ.get("TRAINYARD_STORE"):
        return Path(place).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "trainyard"


def _base(root: Path) -> Base:
    """A PostgreSQL database, where $TRAINYARD_INDEX names one."""
    url = os.environ.get("TRAINYARD_INDEX")
    return PostgresBase(url, root) if url else LocalBase(root / "index.sqlite3")


def new_id() -> str:
    seed = f"{time.time_ns()} {socket.gethostname()} {secrets.token_hex(16)}"
    return hashlib.sha256(seed.encode()).hexdigest()[:8]


def is_id(name: str) -> bool:
    return bool(_ID.match(name))


class Store:
    """`say` gets reports that are not errors: a damaged run, a moved tag."""

    def __init__(self, root: Path | None = None, say: Callable[[str], None] = warnings.warn) -> None:
        self.root = (root or default_root()).absolute()
        self.runs = self.root / "runs"
        self._say = say
        self._index = Index(_base(self.root), self.runs, say)

    def begin(self, run: Run, job_text: str) -> Path:
        """Creates the run's folder and returns it; until `finish` the run counts as `incomplete`."""
        if not is_id(run.id):
            raise BadInput(f"{run.id!r} is not a run id: 8 hexadecimal digits.")
        folder, part = self.runs / run.id, self.runs / f".begin-{run.id}-{writer()}"
        try:
            folders.create(part, msgspec.structs.replace(run, state="incomplete"), job_text)
            fault_point("run.begun")
            with writing(folder):
                part.rename(folder)  # in one step, as others see it
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return folder

    def finish(self, run: Run) -> Run:
        """Writes samples, ledgers and at last run.json, each whole or not at all; the run with its digest."""
        return folders.write(self._own(self.runs / run.id), run)

    def load(self, name: str) -> Run:
        """The whole run by id prefix, tag or folder. A run that lost a part of its record, or was altered since it was
        written, is in the state `damaged`, which is reported.

        Raises `UnknownName`, `BadInput` for an ambiguous prefix, `BadFile` for a record that cannot be decoded.
        """
        folder = self.find(name)
        run = run_damage.marked(folder, folders.read(folder))
        if run.state == "damaged":
            self._say(f"{folder}: the run is damaged: {run.failure}.")
        return run

    def find(self, name: str) -> Path:
        """The folder of the run that `name` names: a folder, else a tag, else a prefix of an id."""
        if name and is_regular(Path(name) / "run.json"):
            return Path(name).absolute()
        if is_id(name) and is_regular(self.runs / name / "run.json"):
            return self.runs / name
        rows = self.rows()
        tagged = {tag: row.id for row in rows for tag in row.tags}
        if name in tagged:
            return self.runs / tagged[name]
        found = [row for row in rows if name and row.id.startswith(name)]
        if len(found) == 1:
            return self.runs / found[0].id
        if found:
            listed = ", ".join(f"{row.id} ({row.job}, {row.started[:16]})" for row in found)
            raise BadInput(f"{name!r} begins {len(found)} runs: {listed}.", "Give one more character.")
        raise UnknownName(
            f"there is no run {name!r} in {self.root}.",
            nearest(name, tagged) if tagged else "`trainyard runs` lists what is stored.",
        )

    def traces(self, folder: Path, run: Run) -> list[Path]:
        """The profiler files of the run in the folder. None of them, which is reported, if some are missing: figures of
        the other ranks would pass for those of all."""
        paths = [folder / name for name in run.trace]
        missing = [path for path in paths if not is_regular(path)]
        if missing:
            self._say(f"{missing[0]}: {len(missing)} of {len(paths)} traces of run {run.id} are missing: none is used.")
        return [] if missing else paths

    def rows(self) -> list[RunRow]:
        """Every stored run, newest first."""
        if not self.root.is_dir():
            return []
        return self._index.rows()

    def reindex(self) -> int:
        """Builds the index again from the folders and clears what killed processes left, but not what others still
        write; how many runs there are."""
        for rest in (path for left in (".begin-*", ".gone-*", ".pull-*") for path in self.runs.glob(left)):
            if is_abandoned(rest):
                shutil.rmtree(rest, ignore_errors=True)  # another process may clear it too
        for rest in self.root.glob(".store.id.*"):
            if is_abandoned(rest):
                rest.unlink(missing_ok=True)
        with writing(self.root):
            return self._index.rebuild() if self.root.is_dir() else 0

    def tag(self, name: str, tag: str) -> Path:
        """Gives the run a tag; a tag names one run, so it leaves the one that had it, which is said."""
        check_tag(tag)
        folder, before = self._own(self.find(name)), self._owners().get(tag)
        # Given first and taken after: a kill between the two leaves the tag twice. Then the later one counts, and
        # tagging again removes the other.
        tags.write_tags(folder, {**tags.read_tags(folder), tag: now()})
        self._take(tag, but=folder)
        if before not in (None, folder.name):
            self._say(f"the tag {tag!r} moved from {before} to {folder.name}.")
        return folder

    def untag(self, tag: str) -> Path:
        """Takes a tag away; the folder of the run that had it."""
        owners = self._owners()
        if tag not in owners:
            raise UnknownName(f"no run has the tag {tag!r}.", nearest(tag, owners))
        self._take(tag)
        return self.runs / owners[tag]

    def delete(self, name: str) -> Path:
        """Removes the run's folder, in one step as others see it. Only runs of this store."""
        folder = self._own(self.find(name))
        gone = self.runs / f".gone-{folder.name}-{writer()}"
        with writing(folder):
            folder.rename(gone)
            fault_point("store.deleted")
            shutil.rmtree(gone)
        self.rows()
        return folder

    def _owners(self) -> dict[str, str]:
        return {tag: row.id for row in self.rows() for tag in row.tags}

    def _take(self, tag: str, but: Path | None = None) -> None:
        for folder in run_folders(self.runs):
            try:
                given = tags.read_tags(folder)
            except BadFile:  # listed without tags, and reported by the list
                continue
            if folder != but and given.pop(tag, None):
                tags.write_tags(folder, given)

    def _own(self, folder: Path) -> Path:
        """The folder as one of this store's. Refuses links and whatever is not directly inside `runs`."""
        real = folder.resolve()
        if folder.is_symlink() or real.parent != self.runs.resolve() or not is_id(real.name):
            raise BadInput(f"{folder} is not in the store {self.root}.", "Only stored runs can be changed.")
        return self.runs / real.name
