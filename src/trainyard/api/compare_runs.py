"""Finds the runs of a report that compares several, and gives runs with equal names distinct ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.api.named_inputs import Named, find
from trainyard.compare.side import Side
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.plans.plans_file import Plans
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.run_result import RunResult

ReportSource = str | os.PathLike[str] | Analysis | RunResult | Plans
"""A source of a report: a name, or a result of `analyse`, `run` or `plan`."""


def find_compared(sources: Sequence[ReportSource], *, strict: bool, say: Callable[[str], None]) -> list[ComparedRun]:
    """The runs, traces and plans that `sources` are or name. `strict`: refuse damaged files of ranks; otherwise they
    are left out, and `say` is called with messages. Raises as `find`."""
    items = [source if isinstance(source, Analysis) else _named(source, strict=strict, say=say) for source in sources]
    jobs = [item.job for item in items if isinstance(item, Named) and item.job]
    compared = [_of_analysis(item) if isinstance(item, Analysis) else item.compared(jobs) for item in items]
    compared = [
        item._replace(analysis=source.analysis) if isinstance(source, RunResult) else item
        for item, source in zip(compared, sources)
    ]
    return rename_equal(compared, sources)


def _named(source: str | os.PathLike[str] | RunResult | Plans, *, strict: bool, say: Callable[[str], None]) -> Named:
    """The input of a source."""
    if isinstance(source, RunResult):
        return Named(source.id, run=source)
    if isinstance(source, Plans):
        return Named(f"plan for {source.machine}", plans=source)
    named = find(os.fspath(source), strict, say=say)
    if named.measured and named.measured.damage:
        say(named.measured.damage)
    return named


def _of_analysis(analysis: Analysis) -> ComparedRun:
    """The ledgers and findings of an analysis. Its events are not available, so there are no operations and no
    timeline."""
    name = Path(analysis.source.removeprefix("run ")).name or "analysis"
    if not analysis.ledgers:
        return ComparedRun(name, None, no_ledger=f"{name} holds no ledger.", analysis=analysis)
    side = Side(name=name, mean=analysis.mean, ledgers=analysis.ledgers)
    return ComparedRun(name, side, analysis=analysis)


def rename_equal(compared: Sequence[ComparedRun], sources: Sequence[ReportSource]) -> list[ComparedRun]:
    """The inputs. Different ones with equal names are named by the shortest ends of their paths that differ."""
    counts = Counter(item.name for item in compared)
    paths = [
        Path(source).absolute() if isinstance(source, str | os.PathLike) and os.path.exists(source) else None
        for source in sources
    ]
    renamed: list[ComparedRun] = []
    for item, path in zip(compared, paths):
        twins = {other for other, twin in zip(paths, compared) if other and twin.name == item.name}
        is_ambiguous = counts[item.name] > 1 and path is not None and len(twins) > 1
        renamed.append(item.renamed(_distinct_name(path, twins)) if is_ambiguous and path else item)
    return renamed


def _distinct_name(path: Path, twins: set[Path]) -> str:
    """The shortest end of a path that no other path of `twins` has."""
    for length in range(1, len(path.parts) + 1):
        end = path.parts[-length:]
        if sum(twin.parts[-length:] == end for twin in twins) == 1:
            return "/".join(end)
    return str(path)
