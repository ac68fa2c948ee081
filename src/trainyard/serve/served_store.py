"""The runs of a store as the server's pages and documents need them: by id, with results that are kept in memory.

A result is computed once for each state of the files that it is made of. Methods raise the errors of `trainyard.errors`
and may be called by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard import ledger as ledgers
from trainyard.api.job_history import history_of_rows
from trainyard.api.named_inputs import Named, measure_run
from trainyard.errors import UnknownName
from trainyard.formats.regular_files import is_regular
from trainyard.record import Run
from trainyard.report.comparison import comparison_page
from trainyard.report.history import history_page
from trainyard.report.render import html
from trainyard.report.view.comparison import Comparison, compare
from trainyard.report.view.run_result import result_of_run
from trainyard.serve.answers import json_of
from trainyard.serve.pages import site_frame
from trainyard.serve.result_cache import ResultCache
from trainyard.store import run_folder
from trainyard.store.index.run_index import RunRow, file_stamp, folder_stamp
from trainyard.store.run_damage import missing_evidence, read_any
from trainyard.store.store import Store, is_id

MOST_TRACE_BYTES = 64 * 1024**2
"""Size of a run's traces up to which they are read for a request; `trainyard report RUN` reads larger ones."""
MOST_HISTORY_RUNS = 500
"""Newest runs of a job that a history covers."""
_CACHE_BYTES = 256 * 1024**2
_MOST_MESSAGES = 1000


class ServedStore:
    """`say`: called with messages about runs that are damaged or cannot be read, once with each."""

    def __init__(self, root: Path | None, say: Callable[[str], None]) -> None:
        self._say, self._said, self._lock = say, set[str](), threading.Lock()
        self.store = Store(root, say=self._say_once)
        self._followed = self.store.followed()
        self._cache = ResultCache(_CACHE_BYTES)

    def rows(self) -> Sequence[RunRow]:
        """One row per run, newest first."""
        return self._followed.rows()

    def check_all(self) -> None:
        """Look for changes of any run's files, which takes a second for 10,000 runs."""
        self._followed.check_all()

    def folder(self, id: str) -> Path:
        """The folder of the run with this id, which is not a prefix, a tag or a path. Raises `UnknownName`."""
        folder = self.store.runs / id if is_id(id) else None
        if folder is None or folder.is_symlink() or not is_regular(folder / "run.json"):
            raise UnknownName(f"there is no run {id[:80]!r}.", "An id has 8 hexadecimal digits; /runs lists them.")
        return folder

    def head(self, id: str) -> Run:
        """The run without its samples and ledgers. Raises `BadFile` if it cannot be read."""
        return run_folder.read_head(self.folder(id))

    def run_page(self, id: str) -> bytes:
        """The report page of a run."""
        folder = self.folder(id)
        return self._cache.get(("page", id, _stamp(folder)), lambda: self._make_run_page(folder))

    def run_document(self, id: str) -> bytes:
        """The document of a run, as `trainyard runs show --json` prints it."""
        folder = self.folder(id)
        return self._cache.get(("run", id, _stamp(folder)), lambda: self._make_run_document(folder))

    def ledgers_document(self, id: str) -> bytes:
        """The ledgers of a run, as in its ledgers.json."""
        return ledgers.to_json(run_folder.read_ledgers(self.folder(id)))

    def comparison_page(self, base: str, new: str) -> bytes:
        """The page that compares two runs."""
        return self._compared("page", base, new, lambda: self._make_comparison_page(base, new))

    def comparison_document(self, base: str, new: str) -> bytes:
        """The comparison of two runs, as `trainyard diff --json` prints it."""
        return self._compared("document", base, new, lambda: json_of(self._comparison(base, new)))

    def history_page(self, job: str, metric: str) -> bytes:
        """The page of a job's history."""
        trail = (("Jobs", "/history"), (job, ""))
        frame = site_frame.site_frame("History", trail, site_frame.history_links(job, metric))
        return self._historical("page", job, metric, lambda history: history_page.page(history, frame).encode())

    def history_document(self, job: str, metric: str) -> bytes:
        """The history of a job, as `trainyard history --json` prints it."""
        return self._historical("document", job, metric, json_of)

    def _make_run_page(self, folder: Path) -> bytes:
        named = self._named(folder)
        frame = site_frame.run_frame(named.stored())
        return html.page(named.reported(draw=True).view, frame).encode()

    def _make_run_document(self, folder: Path) -> bytes:
        named = self._named(folder)
        return json_of(result_of_run(named.stored(), folder, named.measured, missing=missing_evidence(folder)))

    def _make_comparison_page(self, base: str, new: str) -> bytes:
        runs = [self._named(self.folder(id)).compared() for id in (base, new)]
        return comparison_page.page(runs, site_frame.comparison_frame(base, new)).encode()

    def _comparison(self, base: str, new: str) -> Comparison:
        """The comparison of two runs. Raises `WrongRunState` for a damaged run, `UnknownName` for one without a
        ledger."""
        sides = [self._named(self.folder(id)).side(with_operations=True) for id in (base, new)]
        return compare(sides[0], sides[1])

    def _named(self, folder: Path) -> Named:
        """A run with its traces, unless files are missing or the traces are too large."""
        run = read_any(folder)
        is_readable = bool(run.ledgers) and run.state != "damaged" and not missing_evidence(folder)
        if is_readable and _trace_bytes(folder, run) <= MOST_TRACE_BYTES:
            return Named(run.id, measured=measure_run(self.store, run, folder, say=self._say_once), run=run)
        return Named(run.id, run=run)

    def _compared(self, kind: str, base: str, new: str, compute: Callable[[], bytes]) -> bytes:
        """A result of the comparison of two runs."""
        stamps = tuple(_stamp(self.folder(id)) for id in (base, new))
        return self._cache.get(("compare", kind, base, new, stamps), compute)

    def _historical(self, kind: str, job: str, metric: str, show: Callable[..., bytes]) -> bytes:
        """A result of the newest runs of a job."""
        rows = [row for row in self.rows() if row.job == job][:MOST_HISTORY_RUNS]
        ids = tuple((row.id, row.state, row.step_ns) for row in rows)

        def compute() -> bytes:
            return show(history_of_rows(self.store, job, rows, metric=metric or None, say=self._say_once))

        return self._cache.get(("history", kind, job, metric, ids), compute)

    def _say_once(self, text: str) -> None:
        """Pass a message on unless it was passed on before."""
        with self._lock:
            if text in self._said:
                return
            if len(self._said) >= _MOST_MESSAGES:
                self._said.clear()
            self._said.add(text)
        self._say(text)


def _trace_bytes(folder: Path, run: Run) -> int:
    """The size of a run's traces; those that are missing count as empty."""
    paths = [folder / name for name in run.trace]
    return sum(path.stat().st_size for path in paths if is_regular(path))


def _stamp(folder: Path) -> tuple[str, str]:
    """Changes if a file of the run that results are made of does."""
    return folder_stamp(folder), file_stamp(folder / "traces")
