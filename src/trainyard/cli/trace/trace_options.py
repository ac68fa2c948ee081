"""Options that the modes of `trainyard trace` share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from trainyard.cli.support.output import say
from trainyard.cli.support.pipes import InputFile
from trainyard.step_marks import STEP_MARK

if TYPE_CHECKING:
    from trainyard.report.view.analysis import Analysis
    from trainyard.trace.measured_trace import MeasuredTrace
    from trainyard.trace.whatif.grid import Extent
    from trainyard.trace.whatif.replay import Replay

WINDOW = click.option(
    "--window",
    type=click.Choice(["steps", "all"]),
    default="steps",
    show_default=True,
    help="Book each step, or the whole window as one.",
)
FORMULAS = click.option(
    "--formulas",
    type=click.Path(),
    help="TOML file with FLOP and byte formulas of further ops (docs/how-to/extend.md).",
)
LIMIT = click.option("--limit", default="64 GiB", show_default=True, help="Maximum uncompressed size of a file.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with everything --full shows.")
FULL = click.option("--full", is_flag=True, help="Print every table and row.")
PAGE = click.option("--page", type=click.Path(), help="Also write an HTML page to this file.")
_SHARED = (
    click.argument("paths", nargs=-1, required=True, type=InputFile()),
    click.option(
        "--mark", default=STEP_MARK, show_default=True, help="Name or prefix of the annotations around steps."
    ),
    click.option("--engine", default="auto", show_default=True, help="How to analyse ranks: serial, processes or ray."),
    LIMIT,
    click.option("--strict", is_flag=True, help="Fail if a rank's file is damaged, instead of leaving it out."),
)


class TraceFiles(NamedTuple):
    """Profiler files, and how to read them. `window`: "steps" books full steps, "all" everything that was recorded;
    `mark`: name of the events that bound steps; `limit`: maximum uncompressed bytes of a file; `strict`: a damaged file
    is an error; `formulas`: the path of a formula file, or None."""

    paths: tuple[str, ...]
    window: Literal["steps", "all"]
    mark: str
    engine: str
    limit: int
    strict: bool
    formulas: str | None = None

    def measure(self) -> MeasuredTrace:
        """Reads the files and books every interval of their steps to an account of the ledger."""
        from trainyard.api.trace_modes import measure_paths

        options = self._asdict()
        return measure_paths(options.pop("paths"), **options)


def reads_traces(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command: adds the arguments and options that select and read profiler files, and passes them to
    `function` as one `TraceFiles`, its first argument. The options `--window` and `--formulas` are added
    separately."""

    @wraps(function)
    def wrapped(
        paths: tuple[str, ...],
        mark: str,
        engine: str,
        limit: str,
        strict: bool,
        window: Literal["steps", "all"] = "steps",
        formulas: str | None = None,
        **options: Any,
    ) -> None:
        """Calls the command with one `TraceFiles` in place of the options that say how traces are read."""
        from trainyard.units import parse_size

        files = TraceFiles(
            paths=paths,
            window=window,
            mark=mark,
            engine=engine,
            limit=parse_size(limit),
            strict=strict,
            formulas=formulas,
        )
        function(files, **options)

    for option in reversed(_SHARED):
        wrapped = option(wrapped)
    return wrapped


def write_page(
    measured: MeasuredTrace,
    analysis: Analysis,
    page: str,
    extent: Extent | None = None,
    replay: Replay | None = None,
) -> None:
    """Writes the HTML page of an analysis with its timeline, and reports its path. `extent`: of the grid of replays in
    the section "What if"; None for a page without it. `replay`: of `measured`, if it was built before."""
    from trainyard.report.render import html
    from trainyard.report.view.build_view import view_of
    from trainyard.report.view.build_what_if import what_if_section
    from trainyard.report.view.path_overlay import add_path
    from trainyard.report.view.timeline import timeline

    findings = analysis.findings
    what_if = what_if_section(measured, extent, findings=findings, replay=replay) if extent else None
    html.write(view_of(analysis, add_path(timeline(measured), replay), what_if), Path(page))
    say(f"wrote {page}")
