"""Further analyses of a trace: `what_if`, `critical_path`, `query`, `reconcile`; and `hangs` and `measure_memory`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal, NamedTuple

from trainyard.errors import UnknownName
from trainyard.plugins import AS_WRITTEN

if TYPE_CHECKING:
    from trainyard.hangs.verdict import HangAnalysis
    from trainyard.job import Job
    from trainyard.report.view.critical_path import CriticalPath
    from trainyard.report.view.trace_results import MemorySnapshot, QueryResult, Reconciliation, WhatIf
    from trainyard.trace.measured_trace import MeasuredTrace

Path = str | os.PathLike[str]


def what_if(
    paths: Path | Sequence[Path],
    *,
    changes: Sequence[str],
    window: Literal["steps", "all"] = "steps",
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
    formulas: Path | None = None,
) -> WhatIf:
    """Predicts the steps of a trace with changes applied, by replaying the dependencies between their operations.

    `changes`: `network=2x`, `no-stragglers`, `compute/elementwise=2x`, `op:aten::mm=roofline`, `without:straggler`
    (the cause of a finding is removed), ...; they are combined. The other options are those of `analyse`.

    ```python
    result = api.what_if("traces/", changes=["no-stragglers"])
    print(result.before.wall_ns, result.after.wall_ns)
    ```

    Raises `BadInput` for a change that is invalid or matches nothing in the trace.
    """
    from trainyard.diagnose.predict_changes import predict_changes
    from trainyard.report.view.trace_results import predicted_steps

    measured = measure_paths(
        paths, window=window, mark=mark, limit=limit, engine=engine, strict=strict, formulas=formulas
    )
    return predicted_steps(measured, predict_changes(measured, changes))


def critical_path(
    paths: Path | Sequence[Path],
    *,
    window: Literal["steps", "all"] = "steps",
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
) -> CriticalPath:
    """Finds the chain of dependent ops that determines when the steps of a trace end. The options are those of
    `analyse`.

    ```python
    path = api.critical_path("traces/")
    print([(share.label, share.ns // path.steps) for share in path.shares])
    ```
    """
    from trainyard.report.view.critical_path import critical_path_of
    from trainyard.trace.whatif.replay import Replay

    measured = measure_paths(paths, window=window, mark=mark, limit=limit, engine=engine, strict=strict)
    return critical_path_of(Replay(measured))


def query(
    sql: str,
    paths: Path | Sequence[Path],
    *,
    window: Literal["steps", "all"] = "steps",
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
    formulas: Path | None = None,
) -> QueryResult:
    """Runs a SELECT over the tables of a trace: work, idle, ledger, ... (docs/reference.md, "Tables of a trace").

    Needs the extra `sql`. The other options are those of `analyse`.

    ```python
    result = api.query("select rank, sum(ns) from ledger group by rank", "traces/")
    print(result.columns, result.rows)
    ```

    Raises `MissingLibrary` without duckdb, `BadInput` for a query that is invalid or takes too long.
    """
    from trainyard.report.view.trace_results import query_result
    from trainyard.trace.export.sql import query as run_query

    measured = measure_paths(
        paths, window=window, mark=mark, limit=limit, engine=engine, strict=strict, formulas=formulas
    )
    return query_result(run_query(measured, sql), measured)


def reconcile(
    paths: Path | Sequence[Path],
    *,
    tool: Literal["hta", "tracelens"],
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
) -> Reconciliation:
    """Returns the figures of a trace by the definitions of another tool, and how these differ from a ledger's.

    The other options are those of `analyse`.

    ```python
    for rank in api.reconcile("traces/", tool="hta").ranks:
        print(rank.rank, rank.ns["exposed_comm_time"])
    ```

    Raises `BadInput` if the tool's definitions leave no device work.
    """
    from trainyard.report.view.trace_results import reconciled_ranks

    return reconciled_ranks(measure_paths(paths, mark=mark, limit=limit, engine=engine, strict=strict), tool)


def hangs(dumps: Path | Sequence[Path], *, limit: int = 512 * 2**20) -> HangAnalysis:
    """Finds the ranks that make a job hang, from the dumps of torch's flight recorder.

    `dumps`: the files of the ranks, or folders of them. `limit`: maximum bytes of a file.

    ```python
    verdict = api.hangs("/tmp/nccl_traces")
    print(verdict.kind, verdict.ranks, verdict.summary)
    ```

    Raises `BadFile` if no file is a flight record, `BadInput` for records of different jobs or two of one rank.
    """
    from trainyard.hangs.find_culprit import find_culprit
    from trainyard.hangs.load_records import load_records

    listed = [dumps] if isinstance(dumps, str | os.PathLike) else dumps
    loaded = load_records(listed, limit)
    return find_culprit(loaded.records, loaded.warnings, loaded.unreadable)


def measure_memory(snapshot: Path, *, limit: int = AS_WRITTEN.limit) -> MemorySnapshot:
    """Measures a memory snapshot of torch's allocator: what held the peak of each device, and why requests failed.

    `limit`: maximum uncompressed bytes of the file.

    ```python
    for device in api.measure_memory("snapshot.pickle").devices:
        print(device.device, device.peak.allocated, device.peak.held)
    ```

    Raises `BadFile` for a file that is not a snapshot.
    """
    import pathlib

    from trainyard.report.view.trace_results import MemorySnapshot
    from trainyard.trace.memory.measure_snapshot import measure, record

    loaded, devices = measure(pathlib.Path(snapshot), limit)
    return MemorySnapshot(devices=tuple(record(loaded, device) for device in devices))


def measure_paths(
    paths: Path | Sequence[Path],
    *,
    window: Literal["steps", "all"] = "steps",
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
    formulas: Path | None = None,
) -> MeasuredTrace:
    """Books profiler files, folders of them, or the traces of a stored run. The options are those of `analyse`."""
    from trainyard.plugins import ReadOptions
    from trainyard.trace.flops.formula_file import read_formulas
    from trainyard.trace.flops.op_costs import Formulas
    from trainyard.trace.measure import measure_files

    listed = [paths] if isinstance(paths, str | os.PathLike) else paths
    files = [os.fspath(path) for path in listed]
    options = ReadOptions(limit, mark)
    op_formulas = Formulas(read_formulas(os.fspath(formulas))) if formulas is not None else Formulas()
    run = _stored_run(files[0]) if len(files) == 1 else None
    return measure_files(
        run.traces if run else files,
        window,
        source=run.id if run else "",
        axis=run.job.trace_axis if run else "",
        engine=engine,
        options=options,
        strict=strict,
        formulas=op_formulas,
    )


class _StoredTraces(NamedTuple):
    """The traces of a stored run: its id, its job and its profiler files."""

    id: str
    job: Job
    traces: list[FilePath]


def _stored_run(name: str) -> _StoredTraces | None:
    """The traces of the stored run `name`: an id prefix or a tag, if no file has that name, or a run's folder. None if
    there is no such run. Raises `UnknownName` for a run without traces."""
    from trainyard.store.store import Store

    if os.path.lexists(name) and not os.path.isfile(os.path.join(name, "run.json")):
        return None
    store = Store()
    try:
        folder = store.find(name)
    except UnknownName:
        return None
    run = store.load(name)
    traces = store.traces(folder, run)
    if not traces:
        raise UnknownName(f"run {run.id} holds no traces.", f"`trainyard runs show {run.id}` shows what it has.")
    return _StoredTraces(id=run.id, job=run.job, traces=traces)
