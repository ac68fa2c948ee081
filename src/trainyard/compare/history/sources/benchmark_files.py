"""Series from the result files of other benchmark programs: pytest-benchmark's saved runs and asv's results.

One file is one run of many benchmarks; a folder of them is a series of each. Files are identified by their contents.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from trainyard import units
from trainyard.compare.history.sources.series import Series, SeriesMetric, SeriesPoint
from trainyard.errors import BadFile, BadInput, UnknownName, nearest

_ASV_VERSION = 2
"""Version of asv's result files that is read."""
_MAX_LISTED = 5
"""Names of benchmarks that a message lists."""


class _SavedResults(NamedTuple):
    """The figures of one file: `figures`: benchmark -> s (or asv's own unit); `time`: ISO date and time of the run;
    `where`: machine and environment."""

    time: str
    commit: str
    where: str
    figures: dict[str, float]


def is_benchmark_file(path: Path) -> bool:
    """Whether `load` reads this path: a folder, or a file that pytest-benchmark or asv wrote."""
    return path.is_dir() or _read_results(path) is not None


def load(path: Path, benchmark: str | None) -> Series:
    """Loads the series of one benchmark from a file or all files of a folder, in the order of their time. Results of
    other machines or environments than the newest one's are left out. `benchmark`: full name, optional if there is only
    one. Raises `BadFile` for a folder without results, `BadInput` or `UnknownName` if `benchmark` does not identify
    one."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    results = sorted((result for file in files if (result := _read_results(file))), key=lambda result: result.time)
    names = sorted({name for result in results for name in result.figures})
    if not names:
        raise BadFile(f"{path}: contains no results of pytest-benchmark or asv.")
    if benchmark is None and len(names) > 1:
        listed = ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")
        raise BadInput(f"{path}: contains {len(names)} benchmarks: {listed}.", "Select one with --metric NAME.")
    name = benchmark or names[0]
    if name not in names:
        raise UnknownName(f"{path}: there is no benchmark {name!r}.", nearest(name, names))
    results_with_name = [result for result in results if name in result.figures]
    comparable_results = [result for result in results_with_name if result.where == results_with_name[-1].where]
    left_out_count = len(results_with_name) - len(comparable_results)
    return Series(
        name=name.rsplit("::", 1)[-1],
        metric=name,
        about=SeriesMetric(label=name, unit="", better="lower"),
        points=tuple(
            SeriesPoint(value=result.figures[name], commit=result.commit, time=result.time)
            for result in comparable_results
        ),
        notes=(
            f"{units.counted(left_out_count, 'result')} of other machines than {results_with_name[-1].where} left out.",
        )
        if left_out_count
        else (),
    )


def _read_results(path: Path) -> _SavedResults | None:
    """The results in a file; None if neither program wrote it, or it is one of asv's description files."""
    try:
        document = json.loads(path.read_bytes())  # asv writes Infinity, which JSON does not know
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    try:
        if "benchmarks" in document and "machine_info" in document:
            return _read_pytest_benchmark(document)
        if "results" in document and "commit_hash" in document:
            return _read_asv(path, document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadFile(f"{path}: not as pytest-benchmark or asv write it: {type(error).__name__}: {error}.") from error
    return None


def _read_pytest_benchmark(document: dict[str, Any]) -> _SavedResults:
    """The median of each benchmark in s, which is robust against disturbed rounds."""
    figures = {str(benchmark["fullname"]): benchmark["stats"]["median"] for benchmark in document["benchmarks"]}
    machine = document["machine_info"]
    where = " ".join(str(machine.get(key, "")) for key in ("node", "python_version")).strip()
    commit = str((document.get("commit_info") or {}).get("id") or "")
    return _SavedResults(time=str(document["datetime"]), commit=commit, where=where, figures=_keep_finite(figures))


def _read_asv(path: Path, document: dict[str, Any]) -> _SavedResults:
    """The figures of an asv result file, one per benchmark and combination of its parameters. Raises `BadFile` for
    another version of the format."""
    if document.get("version") != _ASV_VERSION:
        raise BadFile(
            f"{path}: asv results of version {document.get('version')}, but only version {_ASV_VERSION} is supported.",
            "Run `asv update`.",
        )
    # A benchmark's cells are in the order of the columns; `params` are the values of each of its parameters, and
    # `result` has a figure for each combination of them.
    columns = document["result_columns"]
    figures: dict[str, Any] = {}
    for name, cells in document["results"].items():
        fields = dict(zip(columns, cells or ()))
        values, params = fields.get("result") or (), fields.get("params") or ()
        for combination, value in zip(product(*params), values):
            figures[f"{name}({', '.join(map(str, combination))})" if combination else name] = value
    time = datetime.fromtimestamp(document["date"] / 1000, UTC).isoformat(timespec="seconds")
    where = f"{document['params']['machine']} {document['env_name']}"
    return _SavedResults(time=time, commit=str(document["commit_hash"]), where=where, figures=_keep_finite(figures))


def _keep_finite(figures: dict[str, Any]) -> dict[str, float]:
    """The finite figures: benchmarks that failed or were skipped have none."""
    numbers = {name: value for name, value in figures.items() if type(value) in (int, float)}
    return {name: float(value) for name, value in numbers.items() if isfinite(value)}
