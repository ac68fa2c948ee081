"""`watch_run`: follow a run while it is being written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainyard.errors import UnknownName
from trainyard.ledger import Ledger
from trainyard.record import Run
from trainyard.run.live_run import LiveRun, follow_run
from trainyard.store.store import Store
from trainyard.trace.measure import measure_files


def _ignore(_: str) -> None:
    """Print nothing."""


def watch_run(
    name: str | os.PathLike[str],
    *,
    interval_s: float = 1.0,
    wait_s: float = 0.0,
    store: Store | None = None,
    say: Callable[[str], None] = _ignore,
) -> Iterator[LiveRun]:
    """Follows a run: yields an update at once, then one whenever something has changed, until the run is over.

    `name`: a run by id prefix, tag or folder. `interval_s`: seconds between two looks at its files. `wait_s`: seconds
    to wait for a run of that name that has not begun. `store`: of the run; by default the user's. `say`: called with
    messages.

        for update in api.watch_run("3f9c"):
            print(update.state, update.last and update.last.loss)

    The profiled window of a script is booked while the script continues; that of a job appears when the run ends.
    Raises `UnknownName` if there is no such run or it is deleted meanwhile, `BadFile` if its record cannot be read.
    """
    folder = _find(os.fspath(name), store or Store(say=say), interval_s, wait_s, say)
    yield from follow_run(folder, interval_s=interval_s, book=_book)


def _find(name: str, store: Store, interval_s: float, wait_s: float, say: Callable[[str], None]) -> Path:
    """The folder of a run. Raises `UnknownName` if there is no run of that name after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    is_waiting = False
    while True:
        try:
            return store.find(name)
        except UnknownName:
            if time.monotonic() >= deadline:
                raise
        if not is_waiting:
            say(f"waiting for run {name!r} to begin.")
        is_waiting = True
        time.sleep(min(interval_s, max(0.0, deadline - time.monotonic())))


def _book(run: Run, traces: Sequence[Path]) -> Ledger:
    """The mean ledger of the profiled steps of a run, computed in this process."""
    return measure_files(traces, source=run.id, axis=run.job.trace_axis, engine="serial").mean
