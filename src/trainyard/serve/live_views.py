"""Runs in progress as several readers look at them: each run is read once for all pages and streams."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from pathlib import Path

import msgspec

from trainyard.run.live_run import LiveRun, RunFollower

_FRESH_S = 0.5
"""Seconds for which an update is shared."""
_MOST_RUNS = 8
"""Runs whose latest steps are kept after their last reader has gone."""


class LiveView:
    """The state of a run in progress. Safe for threads, of which one reads the files while the others wait."""

    def __init__(self, folder: Path, fresh_s: float = _FRESH_S) -> None:
        self.folder = folder
        self._follower, self._fresh_s = RunFollower(folder), fresh_s
        self._lock = threading.Lock()
        self._update: LiveRun | None = None
        self._read_at = 0.0
        self._steps = 0
        """Number of steps that were read in all; the follower keeps the latest ones."""

    @property
    def is_first(self) -> bool:
        """Whether the files were not read yet, so that a look may take seconds."""
        return self._update is None

    def look(self, seen: int = 0) -> tuple[LiveRun, int]:
        """The latest update with the steps since the first `seen` ones, at most the latest 1,000, and the number of
        steps in all. Raises `BadFile` for a run.json that cannot be read, `UnknownName` for a run that was deleted."""
        with self._lock:
            if self._update is None or time.monotonic() - self._read_at > self._fresh_s:
                self._update = self._follower.look()
                self._steps += len(self._update.new_steps)
                self._read_at = time.monotonic()
            kept = tuple(self._follower.steps)
            new = kept[max(0, len(kept) - (self._steps - seen)) :]
            return msgspec.structs.replace(self._update, new_steps=new), self._steps


class LiveViews:
    """The views of the runs that were looked at last. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: OrderedDict[Path, LiveView] = OrderedDict()

    def view(self, folder: Path) -> LiveView:
        """The view of the run in `folder`, which all readers share."""
        with self._lock:
            view = self._views.get(folder)
            if view is None:
                view = self._views[folder] = LiveView(folder)
            self._views.move_to_end(folder)
            if len(self._views) > _MOST_RUNS:
                self._views.popitem(last=False)
            return view
