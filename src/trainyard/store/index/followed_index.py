"""The rows of a store for a process that lists it again and again, such as a server: they stay in memory, and a list
reads only the folders that changed.

Adding or deleting a run changes the modification time of the folder of run folders, which is one `stat` per list.
Further files of a run change while it is incomplete, when it is tagged, or when someone alters them: its run.json is
looked at in each list as long as the run is incomplete, and `check_all`, which takes a `stat` per file, finds the rest.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from trainyard.formats.regular_files import is_regular
from trainyard.store.index.run_index import Index, Indexed, RunRow, file_stamp, sort_rows

_SETTLED_NS = 2_000_000_000
"""Age of a folder's modification time after which another change must get another time. Clocks of file systems tick
every few ms, those of network file systems every second."""


class FollowedIndex:
    """The rows of `index`, whose folder of run folders is `runs`. Safe for use by several threads."""

    def __init__(self, index: Index, runs: Path) -> None:
        self._index, self._runs = index, runs
        self._lock = threading.Lock()
        self._entries: dict[str, Indexed] = {}
        self._is_read = False
        self._rows: tuple[RunRow, ...] = ()
        self._incomplete: list[str] = []
        self._folder_time_ns = -1
        """Modification time of `runs` at the last list of its names; -1 if they must be listed again."""
        self._added: set[str] = set()
        """Folders that `_update` has read; `check_all` reads them again, and writes them to the database."""
        self._unreadable: set[str] = set()
        """Folders whose run.json could not be read; they are tried again by `check_all`."""
        self._updated_at = 0.0
        """Time on the monotonic clock at which the last update began."""

    def rows(self) -> tuple[RunRow, ...]:
        """One row per run, newest first, with every run that was stored before the call."""
        if not self._is_read:
            self.check_all()
        called_at = time.monotonic()
        with self._lock:
            # An update that began while this call waited for the lock serves it too.
            if self._updated_at < called_at:
                started_at = time.monotonic()
                if self._update():
                    self._sort()
                self._updated_at = started_at
            return self._rows

    def check_all(self) -> None:
        """Look at the files of every run, as `Index.entries` does, and bring the index database up to date."""
        with self._lock:
            added, self._added = self._added, set()
            is_known = self._is_read
            known = {name: entry for name, entry in self._entries.items() if name not in added}
        entries = self._index.entries(known if is_known else None) if self._runs.is_dir() else {}
        with self._lock:
            self._entries, self._is_read = entries, True
            self._sort()
            self._unreadable.clear()
            # Runs may have been added, and read by an update, since their names were listed.
            self._folder_time_ns, self._updated_at = -1, 0.0

    def _sort(self) -> None:
        """Set the rows and the names of incomplete runs after a change of the entries."""
        self._rows = tuple(sort_rows(self._entries))
        self._incomplete = [row.id for row in self._rows if row.state == "incomplete"]

    def _update(self) -> bool:
        """Read the folders that were added, and incomplete runs whose run.json changed; drop deleted runs. Returns
        whether a row changed."""
        entries = self._entries
        changed = [
            name
            for name in self._incomplete
            if file_stamp(self._runs / name / "run.json") != entries[name].stamp.partition(" ")[0]
        ]
        deleted: list[str] = []
        if (folder_time_ns := self._modified_ns()) != self._folder_time_ns:
            names = self._names()
            is_settled = time.time_ns() - folder_time_ns > _SETTLED_NS
            self._folder_time_ns = folder_time_ns if is_settled else -1
            changed += [
                name for name in names - entries.keys() - self._unreadable if is_regular(self._runs / name / "run.json")
            ]
            deleted = [name for name in entries if name not in names]
        for name in deleted:
            del entries[name]
        new_entries = self._index.read_folders(changed)
        self._unreadable |= set(changed) - new_entries.keys()
        entries.update(new_entries)
        self._added |= new_entries.keys()
        return bool(deleted or new_entries)

    def _modified_ns(self) -> int:
        """Modification time of the folder of run folders, in ns since the epoch; 0 if it does not exist."""
        try:
            return self._runs.stat().st_mtime_ns
        except OSError:
            return 0

    def _names(self) -> set[str]:
        """Names of the folders that may hold a run."""
        try:
            with os.scandir(self._runs) as listed:
                return {item.name for item in listed if not item.name.startswith(".") and not item.is_symlink()}
        except OSError:
            return set()
