"""`history`: when the performance of a job changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard import job_file
from trainyard.api.gate_sides import load_complete
from trainyard.api.gate_stored_runs import ignore_message
from trainyard.compare.history.accepted_changes import FILE_NAME, Accepted, read
from trainyard.compare.history.judge_changes import judge
from trainyard.compare.history.sources import benchmark_files, stored_runs
from trainyard.compare.history.sources import series as series_files
from trainyard.compare.history.sources.series import Series
from trainyard.errors import BadInput, UnknownName, nearest
from trainyard.report.history.history_report import HistoryReport, report_history
from trainyard.store.index.run_index import RunRow
from trainyard.store.store import Store

_FILE_METRIC, _RUN_METRIC = "value", "step_time"
"""Default metrics of a series in a file and of stored runs."""


def history(
    job: str | os.PathLike[str] | None = None,
    *,
    metric: str | None = None,
    series: str | os.PathLike[str] | None = None,
    accepted: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = ignore_message,
) -> HistoryReport:
    """Finds when a metric changed: change points over the stored runs of a job, or over any series.

    `job`: the name of a job, or its file. `metric`: a metric, an account of the ledger, or a benchmark; `step_time` by
    default. `series`: in place of a job, a JSON or CSV file, or the results folder of pytest-benchmark or asv.
    `accepted`: the file of accepted changes and resets; trainyard-history.toml in the working directory by default.
    `say`: called with messages.

    ```python
    result = api.history("tiny", metric="tokens_per_s")
    for change in result.changes:
        print(change.change.kind, change.point.commit, change.share)
    ```

    Raises `UnknownName` for a job without runs, `BadFile` for a file that cannot be read, `NotEnoughEvidence` for too
    few runs.
    """
    if (job is None) == (series is None):
        raise BadInput("Give either a job or --series.", "trainyard history JOB, or trainyard history --series FILE.")
    if series is not None:
        return report_history(judge(_load_file(Path(series), metric), (), _load_accepted(accepted)), stored=False)
    store = Store(say=say)
    name = _job_name(os.fspath(job or ""))
    return history_of_rows(store, name, store.rows(), metric=metric, accepted=accepted, say=say)


def history_of_rows(
    store: Store,
    name: str,
    rows: Sequence[RunRow],
    *,
    metric: str | None = None,
    accepted: str | os.PathLike[str] | None = None,
    say: Callable[[str], None],
) -> HistoryReport:
    """The history of the job `name` over the runs of `rows`, which are of any jobs. `metric`, `accepted`, `say` and
    errors: as for `history`."""
    if not any(row.job == name for row in rows):
        raise UnknownName(
            f"there are no runs of job {name!r} in {store.root}.", nearest(name, {row.job for row in rows})
        )
    complete_rows = [row for row in rows if row.job == name and row.state == "complete"]
    loaded = list(load_complete(store, complete_rows, say))
    points, runs = stored_runs.build_series(name, loaded, metric or _RUN_METRIC)
    return report_history(judge(points, runs, _load_accepted(accepted)))


def _load_file(path: Path, metric: str | None) -> Series:
    """The series in a file: results of pytest-benchmark or asv, or JSON or CSV. `metric`: the benchmark or column; None
    for the default."""
    if benchmark_files.is_benchmark_file(path):
        return benchmark_files.load(path, metric)
    return series_files.load(path, metric or _FILE_METRIC)


def _job_name(job: str) -> str:
    """The name in a job file; any other argument is the name itself."""
    return job_file.load(job).name if Path(job).suffix == ".toml" and Path(job).is_file() else job


def _load_accepted(path: str | os.PathLike[str] | None) -> Accepted:
    """Read the accepted changes; none if no file was named and the default file does not exist."""
    if path is None and not Path(FILE_NAME).is_file():
        return Accepted()
    return read(Path(path or FILE_NAME))
