"""Series from what other benchmark programs keep: pytest-benchmark's saved runs, and asv's results.

One file is one run of many benchmarks; a folder of them is a series of each. Files are told by what is in them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import product
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from trainyard.compare.history.sources.series import Series, SeriesPoint
from trainyard.errors import BadFile, BadInput, UnknownName, nearest
from trainyard.words import Metric

_ASV_VERSION = 2
_SHOWN = 5


class _SavedResults(NamedTuple):
    """One file's figures in s (or asv's own unit). `where`: on which machine and environment."""

    when: str
    commit: str
    where: str
    figures: dict[str, float]


def is_foreign(path: Path) -> bool:
    """Whether `load` is for this: a folder, or a file that pytest-benchmark or asv wrote."""
    return path.is_dir() or _kept(path) is not None


def load(path: Path, benchmark: str | None) -> Series:
    """`benchmark`: by its full name; need not be said where there is one. Raises `BadFile` for a folder without
    results, `BadInput` and `UnknownName` where `benchmark` does not say which."""
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    kept = sorted((one for file in files if (one := _kept(file))), key=lambda one: one.when)
    names = sorted({name for one in kept for name in one.figures})
    if not names:
        raise BadFile(f"{path}: no results of pytest-benchmark or asv are in it.")
    if benchmark is None and len(names) > 1:
        listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        raise BadInput(f"{path}: it holds {len(names)} benchmarks: {listed}.", "Say which: --metric NAME.")
    name = benchmark or names[0]
    if name not in names:
        raise UnknownName(f"{path}: there is no benchmark {name!r}.", nearest(name, names))
    own = [one for one in kept if name in one.figures]
    here = [one for one in own if one.where == own[-1].where]
    left = len(own) - len(here)
    return Series(
        name=name.rsplit("::", 1)[-1],
        metric=name,
        about=Metric(name, "A benchmark's figure, as another program kept it; less is better.", ""),
        points=tuple(SeriesPoint(value=one.figures[name], commit=one.commit, when=one.when) for one in here),
        notes=(f"{left} left out that were not made on {own[-1].where}.",) if left else (),
    )


def _kept(path: Path) -> _SavedResults | None:
    """None for a file that neither program wrote: asv keeps descriptions among its results."""
    try:
        document = json.loads(path.read_bytes())  # asv writes Infinity, which JSON does not know
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    try:
        if "benchmarks" in document and "machine_info" in document:
            return _of_pytest(document)
        if "results" in document and "commit_hash" in document:
            return _of_asv(path, document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadFile(f"{path}: not as pytest-benchmark or asv write it: {type(error).__name__}: {error}.") from error
    return None


def _of_pytest(document: dict[str, Any]) -> _SavedResults:
    """Medians: what a benchmark's other rounds were disturbed by is not in them."""
    figures = {str(one["fullname"]): one["stats"]["median"] for one in document["benchmarks"]}
    machine = document["machine_info"]
    where = " ".join(str(machine.get(key, "")) for key in ("node", "python_version")).strip()
    commit = str((document.get("commit_info") or {}).get("id") or "")
    return _SavedResults(str(document["datetime"]), commit, where, _finite(figures))


def _of_asv(path: Path, document: dict[str, Any]) -> _SavedResults:
    if document.get("version") != _ASV_VERSION:
        raise BadFile(
            f"{path}: asv's results of version {document.get('version')}, but {_ASV_VERSION} is read.",
            "Run `asv update`.",
        )
    columns = document["result_columns"]
    figures: dict[str, Any] = {}
    for name, cells in document["results"].items():
        said = dict(zip(columns, cells or ()))
        values, params = said.get("result") or (), said.get("params") or ()
        for combination, value in zip(product(*params), values):
            figures[f"{name}({', '.join(map(str, combination))})" if combination else name] = value
    when = datetime.fromtimestamp(document["date"] / 1000, UTC).isoformat(timespec="seconds")
    where = f"{document['params']['machine']} {document['env_name']}"
    return _SavedResults(when, str(document["commit_hash"]), where, _finite(figures))


def _finite(figures: dict[str, Any]) -> dict[str, float]:
    """Without benchmarks that failed or were left out."""
    numbers = {name: value for name, value in figures.items() if type(value) in (int, float)}
    return {name: float(value) for name, value in numbers.items() if isfinite(value)}
