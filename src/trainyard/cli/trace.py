"""`trainyard trace`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.support.pipes import InputFile

if TYPE_CHECKING:
    from trainyard.report.view.analysis import Analysis
    from trainyard.trace.measured_trace import MeasuredTrace

_PEERS = ("hta", "tracelens")
_ALL = sys.maxsize


class _Top(click.ParamType):
    """A number of rows; `all` is larger than any table."""

    name = "rows"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "all":
            return _ALL
        if not str(value).isdecimal():
            self.fail(f"{value!r} is not a number of rows or `all`.", param, ctx)
        return int(value)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=InputFile())
@click.option(
    "--window",
    type=click.Choice(["steps", "all", *_PEERS]),
    default="steps",
    show_default=True,
    help="Book each step, or the whole window as one; or show the figures by another tool's definitions.",
)
@click.option("--mark", default="ProfilerStep#", show_default=True, help="Prefix of the annotations around steps.")
@click.option("--what-if", "changes", multiple=True, help="Predict the step with CHANGE: network=2x, no-stragglers, …")
@click.option("--sql", help="Run a SQL query over work, idle time, ledgers, … (extra `sql`).")
@click.option("--engine", default="auto", show_default=True, help="How to analyse ranks: serial, processes or ray.")
@click.option("--limit", default="64 GiB", show_default=True, help="Maximum uncompressed size of a file.")
@click.option("--json", "as_json", is_flag=True, help="Print ledgers, findings and tables as JSON.")
@click.option("--page", type=click.Path(), help="Also write an HTML page to this file.")
@click.option(
    "--top", type=_Top(), metavar="N|all", default=8, show_default=True, help="Number of rows per table, or `all`."
)
@click.option("--strict", is_flag=True, help="Fail if a rank's file is damaged, instead of leaving it out.")
def command(
    paths: tuple[str, ...],
    window: str,
    mark: str,
    changes: tuple[str, ...],
    sql: str | None,
    engine: str,
    limit: str,
    as_json: bool,
    page: str | None,
    top: int,
    strict: bool,
) -> None:
    """Analyse profiler files, or folders of them, of one or more ranks: where every nanosecond of a step went.

    Reads torch.profiler traces (CUDA, ROCm or CPU only; plain, gzipped or zipped), rocprofv3 JSON and pftrace, XLA
    xplane.pb, Nsight Systems SQLite exports, Neuron JSON exports, and torch memory snapshots.
    """
    from trainyard.plugins import ReadOptions
    from trainyard.trace.measure import measure_files
    from trainyard.trace.memory.snapshot import is_snapshot
    from trainyard.units import parse_size

    requested = {"--window": window in _PEERS, "--sql": sql is not None, "--what-if": bool(changes)}
    modes = [name for name, wanted in requested.items() if wanted]
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} cannot be combined. Pass one of them.")
    if page and modes and not changes:
        raise click.UsageError(f"--page shows the ledger and cannot be combined with {modes[0]}.")
    reading = ReadOptions(parse_size(limit), mark)
    snapshots = [path for path in paths if is_snapshot(Path(path))]
    if snapshots:
        others = [*modes, *(path for path in paths if path != snapshots[0])]
        if others:
            raise click.UsageError(f"{snapshots[0]} is a memory snapshot and cannot be combined with {others[0]}.")
        _memory(Path(snapshots[0]), reading.limit, as_json, page, top)
        return
    booked = "all" if window == "all" else "steps"
    measured = measure_files(paths, booked, engine=engine, how=reading, strict=strict)
    if measured.damage and (as_json or modes):
        say(measured.damage)
    if window in _PEERS:
        _reconcile(measured, window, as_json)
    elif sql is not None:
        _answer(measured, sql, as_json)
    elif changes:
        _suppose(measured, changes, as_json, page)
    else:
        _show(measured, as_json, page, top)


def _show(measured: MeasuredTrace, as_json: bool, page: str | None, top: int) -> None:
    from trainyard.report.view.build_analysis import analyse_measured

    analysis = analyse_measured(measured)
    if as_json:
        print_json(analysis)
    else:
        from trainyard.report.render.terminal import print_parts, print_view
        from trainyard.report.view.build_view import view_of

        out = console()
        print_view(view_of(analysis), out, top)
        print_parts(analysis.ledgers, out, everything=top == _ALL)
    if page:
        _write(measured, analysis, page)


def _answer(measured: MeasuredTrace, sql: str, as_json: bool) -> None:
    """Print the rows of a SQL query over the measured trace."""
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.fact_tables import answered
    from trainyard.trace.export.sql import query

    answer = query(measured, sql)
    if as_json:
        print_json({"columns": answer.columns, "rows": answer.rows})
    else:
        print_table(answered(answer), console())
    if answer.more:
        say(f"Only the first {len(answer.rows):,} rows are shown. Aggregate them, or add a LIMIT.")


def _write(measured: MeasuredTrace, analysis: Analysis, page: str) -> None:
    from trainyard.report.render import html
    from trainyard.report.view.build_view import view_of
    from trainyard.report.view.timeline import timeline

    html.write(view_of(analysis, timeline(measured)), Path(page))
    say(f"wrote {page}")


def _memory(path: Path, limit: int, as_json: bool, page: str | None, top: int) -> None:
    """Print a memory snapshot of torch's allocator."""
    from trainyard import __version__
    from trainyard.report.memory import memory_view
    from trainyard.report.memory.memory_terminal import print_memory
    from trainyard.trace.memory.measure_snapshot import measure, record

    snapshot, devices = measure(path, limit)
    view = memory_view.view_of(snapshot, memory_view.busiest(devices), devices, f"trainyard {__version__}")
    if as_json:
        print_json([record(snapshot, device) for device in devices])
    else:
        print_memory(view, console(), top)
    if page:
        memory_view.write(view, Path(page))
        say(f"wrote {page}")


def _reconcile(measured: MeasuredTrace, tool: str, as_json: bool) -> None:
    """Print the figures by another tool's definitions, and why they differ from ours."""
    from trainyard.report.render.terminal import print_table
    from trainyard.trace.reconcile import TOOLS

    figures = [(rank.events.rank, TOOLS[tool](rank.events)) for rank in measured.ranks]
    if as_json:
        print_json(
            [
                {
                    "rank": rank,
                    "tool": figure.tool,
                    "window_ns": figure.window,
                    "ns": dict(figure.figures),
                    "differs": figure.differs,
                }
                for rank, figure in figures
            ]
        )
        return
    from trainyard.report.view.fact_tables import reconciled

    print_table(reconciled(figures), console())


def _suppose(measured: MeasuredTrace, changes: tuple[str, ...], as_json: bool, page: str | None) -> None:
    """Print the ledger predicted for the steps with the changes."""
    from trainyard.ledger import Ledgers
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.report.view.fact_tables import predicted
    from trainyard.trace.whatif.what_if import what_if

    prediction = what_if(measured, changes)
    if as_json:
        print_json(Ledgers(ledgers=prediction.would.ledgers))
    else:
        print_table(predicted(measured.mean, prediction), console())
    if page:
        _write(prediction.would, analyse_measured(prediction.would), page)
