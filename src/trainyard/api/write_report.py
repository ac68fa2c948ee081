"""`report`: write a report on a run, a trace or plans to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainyard.api.named_inputs import Named, find
from trainyard.report.plans.plans_file import Plans
from trainyard.report.render import by_suffix
from trainyard.report.render.by_suffix import Reported
from trainyard.report.render.written_report import WrittenReport
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.build_view import view_of
from trainyard.report.view.run_result import RunResult


def _ignore(_: str) -> None:
    """Print nothing."""


def report(
    source: str | os.PathLike[str] | Analysis | RunResult | Plans,
    *,
    out: str | os.PathLike[str] | None = None,
    format: str = "html",
    strict: bool = False,
    say: Callable[[str], None] = _ignore,
) -> WrittenReport:
    """Writes a report to a file: HTML, Markdown, CSV, Excel, JSON, Perfetto or an MLPerf log.

    `source`: a run (id prefix, tag or folder), a trace path, a file written by `trainyard plan --json`, or what
    `analyse`, `run` or `plan` returned. `out`: the file, whose suffix selects the format; by default the source's name
    with the suffix of `format`. `strict`: refuse damaged files of ranks; otherwise they are left out. `say`: is called
    with messages about them.

        api.report("3f9c", out="run.html")
        api.report(api.analyse("traces/"), out="traces.md")

    Raises `BadInput` for a format that does not exist or that needs traces or a run which the source does not have.
    """
    ending = by_suffix.ending(Path(out) if out is not None else Path(f"report.{format}"))
    notes: list[str] = []

    def note(text: str) -> None:
        """Keeps a message for the result, and passes it on."""
        notes.append(text)
        say(text)

    name, state, reported = _reported(source, strict, ending == ".html", note)
    file = Path(out) if out is not None else Path(f"{name}{ending}")
    by_suffix.write(reported, file)
    return WrittenReport(name=name, file=str(file), format=ending.removeprefix("."), state=state, notes=tuple(notes))


def _reported(
    source: str | os.PathLike[str] | Analysis | RunResult | Plans, strict: bool, draw: bool, say: Callable[[str], None]
) -> tuple[str, str, Reported]:
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
