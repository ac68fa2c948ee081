"""`gate_convergence` and its companions: whether a change altered the convergence of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard import units
from trainyard.api.gate_stored_runs import ignore_message
from trainyard.errors import BadFile, BadInput
from trainyard.numerics.convergence import compare_curves, golden_curves, mlperf_reference
from trainyard.numerics.convergence.curves import LossCurve, curve_of
from trainyard.numerics.convergence.paired_curves import pair
from trainyard.report.gate.gate_report import (
    ConvergenceReport,
    ReferenceReport,
    StoredCurves,
    report_convergence,
    report_reference,
)
from trainyard.store.store import Store

FilePath = str | os.PathLike[str]


def gate_convergence(
    head: str | Sequence[str],
    *,
    base: str | Sequence[str] = (),
    golden: FilePath | None = None,
    margin: float = compare_curves.MARGIN,
    alpha: float = compare_curves.ALPHA,
    say: Callable[[str], None] = ignore_message,
) -> ConvergenceReport:
    """Tests whether the losses of stored runs differ from those of a base, by seed.

    `head`, `base`: runs (id prefix, tag or folder), paired by their seeds. `golden`: a file of `store_golden_curves`,
    in addition to `base` or in its place. `margin`: the smallest relative difference in loss that matters. `alpha`: the
    rate of false alarms. `say`: receives progress messages.

    ```python
    result = api.gate_convergence(["1f3a", "77b0", "c2d9"], golden="golden.json")
    print(result.headline, result.difference, result.onset)
    ```

    Raises `BadInput` for runs that cannot be compared.
    """
    heads, bases = _load_curves(_list_names(head), _list_names(base), say)
    if golden is not None:
        bases = [*bases, *golden_curves.read(Path(golden))]
    return report_convergence(compare_curves.judge(pair(heads, bases), margin, alpha))


def store_golden_curves(
    head: str | Sequence[str], path: FilePath, *, say: Callable[[str], None] = ignore_message
) -> StoredCurves:
    """Writes the loss curves of stored runs to a file, for `gate_convergence(..., golden=path)`.

    `head`: runs (id prefix, tag or folder). `say`: receives progress messages.

    ```python
    api.store_golden_curves(["1f3a", "77b0", "c2d9"], "golden.json")
    ```

    Raises `PlaceUnwritable`.
    """
    curves, _ = _load_curves(_list_names(head), bases=[], say=say)
    golden_curves.write(Path(path), curves)
    say(f"wrote {units.counted(len(curves), 'curve')} to {path}")
    return StoredCurves(golden=str(path), curves=len(curves))


def gate_reference_points(
    head: FilePath | Sequence[FilePath], *, base: FilePath | Sequence[FilePath]
) -> ReferenceReport:
    """Tests :::MLLOG result logs by MLPerf's rule of reference convergence points (RCP).

    `head`: logs, or folders of logs. `base`: a file of reference points (rcps_*.json), or logs.

    ```python
    result = api.gate_reference_points("results/", base="rcps_llama31_8b.json")
    print(result.headline, result.mlperf)
    ```

    Raises `BadFile` for a file that is neither, `BadInput` without a reference of the benchmark and batch size.
    """
    paths = _list_names(base)
    points = [point for path in paths if path.endswith(".json") for point in mlperf_reference.read_points(Path(path))]
    logs = [log for path in paths if not path.endswith(".json") for log in _list_logs(path)]
    if logs:
        points.append(mlperf_reference.point_of([mlperf_reference.read_result(log) for log in logs]))
    results = [mlperf_reference.read_result(log) for path in _list_names(head) for log in _list_logs(path)]
    return report_reference(mlperf_reference.judge(results, points))


def _list_names(names: FilePath | Sequence[FilePath]) -> list[str]:
    """One name or several as a list."""
    listed = [names] if isinstance(names, str | os.PathLike) else names
    return [os.fspath(name) for name in listed]


def _load_curves(
    heads: Sequence[str], bases: Sequence[str], say: Callable[[str], None]
) -> tuple[list[LossCurve], list[LossCurve]]:
    """Loss curves of the stored runs of both sides. Raises `BadInput` if a run is given twice."""
    store = Store(say=say)
    folders = [store.find(name) for name in (*heads, *bases)]
    if len(set(folders)) < len(folders):
        duplicate = next(folder.name for folder in folders if folders.count(folder) > 1)
        raise BadInput(f"run {duplicate} is given twice.", "A run cannot be compared with itself; pass another one.")
    head_curves, base_curves = ([curve_of(store.load(name), name) for name in names] for names in (heads, bases))
    return head_curves, base_curves


def _list_logs(name: str) -> list[Path]:
    """The file itself, or the logs in a folder by name. Raises `BadFile` for a folder without logs."""
    path = Path(name)
    if not path.is_dir():
        return [path]
    logs = sorted(file for file in path.iterdir() if file.suffix in (".txt", ".log"))
    if not logs:
        raise BadFile(f"{path}: no logs (.txt or .log) in this folder.")
    return logs
