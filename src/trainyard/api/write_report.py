"""`report`: write a report on a run, a trace or plans, or one that compares several, to a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.api.compare_runs import ReportSource, find_compared
from trainyard.api.named_inputs import Named, find
from trainyard.errors import BadInput
from trainyard.report.comparison.write_comparison import comparison_suffix, write_comparison
from trainyard.report.plans.plans_file import Plans
from trainyard.report.render import by_suffix
from trainyard.report.render.by_suffix import Reported
from trainyard.report.render.written_report import WrittenReport
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.build_view import view_of
from trainyard.report.view.run_result import RunResult

_NOT_IN_FILE_NAME = re.compile(r"[^\w.+-]+")
_LONGEST_NAME = 80
"""Characters of the default file name of a comparison."""


def _ignore(_: str) -> None:
    """Print nothing."""


def report(
    source: str
    | os.PathLike[str]
    | Analysis
    | RunResult
    | Plans
    | Sequence[str | os.PathLike[str] | Analysis | RunResult | Plans],
    *,
    out: str | os.PathLike[str] | None = None,
    format: str = "html",
    strict: bool = False,
    say: Callable[[str], None] = _ignore,
) -> WrittenReport:
    """Writes a report to a file: HTML, Markdown, CSV, Excel, JSON, Perfetto or an MLPerf log.

    `source`: a run (id prefix, tag or folder), a trace path, a file written by `trainyard plan --json`, or what
    `analyse`, `run` or `plan` returned. A sequence of two or more of them is compared, each with the first, in one HTML
    page, Markdown, CSV or JSON file. `out`: the file, whose suffix selects the format; by default the source's name
    with the suffix of `format`. `strict`: refuse damaged files of ranks; otherwise they are left out. `say`: is called
    with messages about them.

        api.report("3f9c", out="run.html")
        api.report(api.analyse("traces/"), out="traces.md")
        api.report(["plans.json", "3f9c"], out="plan-against-run.html")

    Raises `BadInput` for a format that does not exist or that needs traces or a run which the source does not have.
    """
    sources = [source] if isinstance(source, str | os.PathLike | Analysis | RunResult | Plans) else list(source)
    if not sources:
        raise BadInput("No run to report on.", "Pass a run, a trace path or a file of plans.")
    path = Path(out) if out is not None else Path(f"report.{format}")
    suffix = by_suffix.ending(path) if len(sources) == 1 else comparison_suffix(path)
    notes: list[str] = []

    def note(text: str) -> None:
        """Keeps a message for the result, and passes it on."""
        notes.append(text)
        say(text)

    if len(sources) == 1:
        name, state, reported = _reported(sources[0], strict, suffix == ".html", note)
        file = Path(out) if out is not None else Path(f"{name}{suffix}")
        by_suffix.write(reported, file)
    else:
        runs = find_compared(sources, strict=strict, say=note)
        name = " against ".join(run.name for run in runs)
        states = [run.run.state if run.run else "" for run in runs]
        state = "damaged" if "damaged" in states else ""
        file = Path(out) if out is not None else Path(f"{_file_name([run.name for run in runs])}{suffix}")
        write_comparison(runs, file)
    return WrittenReport(name=name, file=str(file), format=suffix.removeprefix("."), state=state, notes=tuple(notes))


def _file_name(names: Sequence[str]) -> str:
    """The default name of a comparison's file without its suffix: the names of the runs, of bounded length."""
    parts = [_NOT_IN_FILE_NAME.sub("_", name) for name in names]
    return "-vs-".join(parts)[:_LONGEST_NAME]


def _reported(source: ReportSource, strict: bool, draw: bool, say: Callable[[str], None]) -> tuple[str, str, Reported]:
    """(name, state of a stored run or an empty string, contents) of a source. `strict`: refuse damaged files; `draw`:
    include the timeline; `say`: called with messages."""
    if isinstance(source, RunResult):
        return source.id, source.state, Reported(view_of(source.analysis), source.ledgers, run=source)
    if isinstance(source, Analysis):
        name = Path(source.source.removeprefix("run ")).name or "report"
        return name, source.state, Reported(view_of(source), source.ledgers)
    if isinstance(source, Plans):
        return source.machine, "", Named(source.machine, plans=source).reported(draw)
    named = find(os.fspath(source), strict, say=say)
    if named.measured and named.measured.damage:
        say(named.measured.damage)
    return named.name, named.run.state if named.run else "", named.reported(draw)
