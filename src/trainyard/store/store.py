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
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.record import Run
from trainyard.store import folder as folders
from trainyard.store.disk import writing
from trainyard.store.index import Base, Index, Row
from trainyard.store.local_base import LocalBase
from trainyard.store.postgres import PostgresBase

_ID = re.compile(r"[0-9a-f]{8}\Z")
_TAG = re.compile(r"[A-Za-z][A-Za-z0-9._\-]{0,63}\Z")


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


def now() -> str:
    """The time now in UTC, as runs and tags record it; sorts as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def check_tag(tag: str) -> None:
    """Raises `BadInput` for what cannot be a tag."""
    if not _TAG.match(tag) or is_id(tag):
        raise BadInput(
            f"{tag!r} is not a tag.",
            "Begin with a letter, then letters, digits, '.', '_' or '-', 64 at most, and not like an id.",
        )


class Store:
    """`say` hears what a user should know and no error is: an altered folder, a moved tag."""

    def __init__(self, root: Path | None = None, say: Callable[[str], None] = warnings.warn) -> None:
        self.root = (root or default_root()).absolute()
        self.runs = self.root / "runs"
        self._say = say
        self._index = Index(_base(self.root), self.runs, say)

    def begin(self, run: Run, job_text: str) -> Path:
        """Creates the run's folder and returns it; until `finish` the run counts as `incomplete`."""
        if not is_id(run.id):
            raise BadInput(f"{run.id!r} is not a run id: 8 hexadecimal digits.")
        folder = self.runs / run.id
        folders.create(folder, msgspec.structs.replace(run, state="incomplete"), job_text)
        return folder

    def finish(self, run: Run) -> Run:
        """Writes samples, ledgers and at last run.json, each whole or not at all; the run with its digest."""
        return folders.write(self._own(self.runs / run.id), run)

    def load(self, name: str) -> Run:
        """The whole run by id prefix, tag or folder. Says so when the folder was altered since it was written.

        Raises `UnknownName`, `BadInput` for an ambiguous prefix, `BadFile`.
        """
        folder = self.find(name)
        run = folders.read(folder)
        if run.digest and folders.digest(folder) != run.digest:
            self._say(f"{folder}: job, samples or ledgers were altered after the run was written.")
        return run

    def find(self, name: str) -> Path:
        """The folder of the run that `name` names: a folder, else a tag, else a prefix of an id."""
        if name and (Path(name) / "run.json").is_file():
            return Path(name).absolute()
        if is_id(name) and (self.runs / name / "run.json").is_file():
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

    def rows(self) -> list[Row]:
        """Every stored run, newest first."""
        if not self.root.is_dir():
            return []
        return self._index.rows()

    def reindex(self) -> int:
        """Builds the index anew from the folders and clears what deletions and copies that were killed left; how many
        runs there are."""
        for rest in (*self.runs.glob(".gone-*"), *self.runs.glob(".pull-*")):
            shutil.rmtree(rest)
        with writing(self.root):
            return self._index.rebuild() if self.root.is_dir() else 0

    def tag(self, name: str, tag: str) -> Path:
        """Gives the run a tag; a tag names one run, so it leaves the one that had it, which is said."""
        check_tag(tag)
        folder, before = self._own(self.find(name)), self._owners().get(tag)
        # Given first and taken after: a kill between the two leaves the tag twice, and the later one counts.
        folders.write_tags(folder, {**folders.read_tags(folder), tag: now()})
        if before not in (None, folder.name):
            self._take(tag, but=folder)
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
        gone = self.runs / f".gone-{folder.name}-{secrets.token_hex(4)}"
        with writing(folder):
            folder.rename(gone)
            shutil.rmtree(gone)
        self.rows()
        return folder

    def _owners(self) -> dict[str, str]:
        return {tag: row.id for row in self.rows() for tag in row.tags}

    def _take(self, tag: str, but: Path | None = None) -> None:
        for row in self.rows():
            folder = self.runs / row.id
            tags = folders.read_tags(folder)
            if folder != but and tags.pop(tag, None):
                folders.write_tags(folder, tags)

    def _own(self, folder: Path) -> Path:
        """The folder as one of this store's. Refuses links and whatever is not directly inside `runs`."""
        real = folder.resolve()
        if folder.is_symlink() or real.parent != self.runs.resolve() or not is_id(real.name):
            raise BadInput(f"{folder} is not in the store {self.root}.", "Only stored runs can be changed.")
        return self.runs / real.name
