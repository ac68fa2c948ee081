"""The run store. The `runs/<id>/` folders are the source of truth; an index speeds up listing them: `index.sqlite3` in
the same folder as `runs`, or the database given by $TRAINYARD_INDEX.

An id is 8 hexadecimal digits of a digest of time, host and a random number, and has no order: lists are sorted by start
time. Runs are referred to by a prefix of the id, a tag, or the folder.
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
from trainyard.store.index.followed_index import FollowedIndex
from trainyard.store.index.postgres import PostgresBase
from trainyard.store.index.run_index import Base, Index, RunRow, run_folders
from trainyard.store.index.sqlite_index import LocalBase
from trainyard.store.tags import check_tag, now
from trainyard.store.unfinished_writes import is_abandoned, writer

_ID = re.compile(r"[0-9a-f]{8}\Z")


def default_root() -> Path:
    """$TRAINYARD_STORE, else $XDG_DATA_HOME/trainyard, else ~/.local/share/trainyard."""
    if root := os.environ.get("TRAINYARD_STORE"):
        return Path(root).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "trainyard"


def _base(root: Path) -> Base:
    """The index database of the store in `root`: PostgreSQL if $TRAINYARD_INDEX gives a URL, else SQLite."""
    url = os.environ.get("TRAINYARD_INDEX")
    return PostgresBase(url, root) if url else LocalBase(root / "index.sqlite3")


def new_id() -> str:
    """A random run id."""
    seed = f"{time.time_ns()} {socket.gethostname()} {secrets.token_hex(16)}"
    return hashlib.sha256(seed.encode()).hexdigest()[:8]


def is_id(name: str) -> bool:
    return bool(_ID.match(name))


class Store:
    """The runs under `root`. `say`: called with messages that are not errors, such as a damaged run or a moved tag."""

    def __init__(self, root: Path | None = None, say: Callable[[str], None] = warnings.warn) -> None:
        self.root = (root or default_root()).absolute()
        self.runs = self.root / "runs"
        self._say = say
        self._index = Index(_base(self.root), self.runs, say)

    def begin(self, run: Run, job_text: str) -> Path:
        """Create the run's folder and return it; until `finish` the run is `incomplete`.

        `job_text`: the job file, which is stored with it. The folder is created under a hidden name and renamed, so
        that other processes never see a part of it. Raises `BadInput` for an invalid id.
        """
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
        """Write samples, ledgers and finally run.json, each atomically; returns the run with its digest."""
        return folders.write(self._path_in_store(self.runs / run.id), run)

    def load(self, name: str) -> Run:
        """Load a run by id prefix, tag or folder, with its samples and ledgers.

        If a part of its record is missing or was altered, the run is in the state `damaged` and that is reported.
        Raises `UnknownName`, `BadInput` for an ambiguous prefix, `BadFile` for a record that cannot be decoded.
        """
        folder = self.find(name)
        run = run_damage.mark_damage(folder, folders.read(folder))
        if run.state == "damaged":
            self._say(f"{folder}: the run is damaged: {run.failure}.")
        return run

    def find(self, name: str) -> Path:
        """The folder of the run `name`: a folder, else a whole id, else a tag, else a prefix of an id. Raises
        `UnknownName`, or `BadInput` for an ambiguous prefix."""
        if name and is_regular(Path(name) / "run.json"):
            return Path(name).absolute()
        if is_id(name) and is_regular(self.runs / name / "run.json"):
            return self.runs / name
        rows = self.rows()
        id_by_tag = {tag: row.id for row in rows for tag in row.tags}
        if name in id_by_tag:
            return self.runs / id_by_tag[name]
        matches = [row for row in rows if name and row.id.startswith(name)]
        if len(matches) == 1:
            return self.runs / matches[0].id
        if matches:
            listed = ", ".join(f"{row.id} ({row.job}, {row.started[:16]})" for row in matches)
            raise BadInput(f"{name!r} is a prefix of {len(matches)} runs: {listed}.", "Give more characters.")
        raise UnknownName(
            f"there is no run {name!r} in {self.root}.",
            nearest(name, id_by_tag) if id_by_tag else "`trainyard runs` lists the stored runs.",
        )

    def traces(self, folder: Path, run: Run) -> list[Path]:
        """The profiler files of the run in the folder, one for each rank.

        If some are missing, that is reported and the list is empty: figures of the remaining ranks would be mistaken
        for those of all ranks.
        """
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

    def followed(self) -> FollowedIndex:
        """The rows of this store, for a process that lists them again and again."""
        return FollowedIndex(self._index, self.runs)

    def reindex(self) -> int:
        """Rebuild the index from the folders; return the number of runs.

        Files that killed processes left are removed, but not those that are still being written.
        """
        for leftover in (path for pattern in (".begin-*", ".gone-*", ".pull-*") for path in self.runs.glob(pattern)):
            if is_abandoned(leftover):
                shutil.rmtree(leftover, ignore_errors=True)  # another process may clear it too
        for leftover in self.root.glob(".store.id.*"):
            if is_abandoned(leftover):
                leftover.unlink(missing_ok=True)
        with writing(self.root):
            return self._index.rebuild() if self.root.is_dir() else 0

    def tag(self, name: str, tag: str) -> Path:
        """Assign a tag to the run `name`, and return the run's folder.

        A tag belongs to one run: it is removed from its previous run, which is reported. Raises `BadInput` for text
        that cannot be a tag, and the errors of `find`.
        """
        check_tag(tag)
        folder, previous_id = self._path_in_store(self.find(name)), self._runs_by_tag().get(tag)
        # Assigned first and removed second: a kill in between leaves the tag on two runs. Then the later assignment
        # counts, and tagging again removes the other.
        tags.write_tags(folder, {**tags.read_tags(folder), tag: now()})
        self._remove_tag(tag, keep=folder)
        if previous_id not in (None, folder.name):
            self._say(f"the tag {tag!r} moved from {previous_id} to {folder.name}.")
        return folder

    def untag(self, tag: str) -> Path:
        """Remove a tag; return the folder of the run that had it. Raises `UnknownName` if no run has it."""
        owners = self._runs_by_tag()
        if tag not in owners:
            raise UnknownName(f"no run has the tag {tag!r}.", nearest(tag, owners))
        self._remove_tag(tag)
        return self.runs / owners[tag]

    def delete(self, name: str) -> Path:
        """Remove the folder of the run `name` and return its path. Raises `BadInput` for a run outside this store.

        The folder is renamed first, so that other processes see the whole run or none.
        """
        folder = self._path_in_store(self.find(name))
        hidden_folder = self.runs / f".gone-{folder.name}-{writer()}"
        with writing(folder):
            folder.rename(hidden_folder)
            fault_point("store.deleted")
            shutil.rmtree(hidden_folder)
        self.rows()  # removes the run from the index
        return folder

    def _runs_by_tag(self) -> dict[str, str]:
        """Tag -> id of the run that has it."""
        return {tag: row.id for row in self.rows() for tag in row.tags}

    def _remove_tag(self, tag: str, keep: Path | None = None) -> None:
        """Remove the tag from every run but the one in the folder `keep`."""
        for folder in run_folders(self.runs):
            try:
                run_tags = tags.read_tags(folder)
            except BadFile:  # listed without tags, and reported by the list
                continue
            if folder != keep and run_tags.pop(tag, None):
                tags.write_tags(folder, run_tags)

    def _path_in_store(self, folder: Path) -> Path:
        """The folder as a path in this store. Rejects links and folders that are not directly inside `runs`."""
        real = folder.resolve()
        if folder.is_symlink() or real.parent != self.runs.resolve() or not is_id(real.name):
            raise BadInput(f"{folder} is not in the store {self.root}.", "Only stored runs can be changed.")
        return self.runs / real.name
