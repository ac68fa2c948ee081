"""`trainyard trace PATH...`: the analysis of profiler files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.trace.trace_options import FORMULAS, FULL, JSON, PAGE, WINDOW, TraceFiles, reads_traces, write_page

if TYPE_CHECKING:
    from trainyard.trace.whatif.grid import Extent


@click.command()
@WINDOW
@FORMULAS
@reads_traces
@PAGE
@click.option(
    "--what-if", "replays_grid", is_flag=True, help="Replay every combination of the page's what-if sliders (slow)."
)
@FULL
@JSON
def command(files: TraceFiles, page: str | None, replays_grid: bool, full: bool, as_json: bool) -> None:
    """Analyse profiler files, or folders of them, of one or more ranks: where every nanosecond of a step went.

    Reads torch.profiler traces (CUDA, ROCm or CPU only; plain, gzipped or zipped), rocprofv3 JSON and pftrace, XLA
    xplane.pb, Nsight Systems SQLite exports, Neuron JSON exports, and torch memory snapshots.
    """
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.report.view.build_what_if import shared_replay
    from trainyard.trace.memory.recognise import is_snapshot

    if snapshots := [path for path in files.paths if is_snapshot(Path(path))]:
        _show_snapshot(files, snapshots[0], page, full, as_json)
        return
    if replays_grid and not page:
        raise click.UsageError("--what-if fills a section of the page. Pass --page FILE.")
    measured = files.measure()
    if measured.damage and as_json:
        say(measured.damage)
    extent: Extent = "full" if replays_grid else "short"
    replay = shared_replay(measured, extent) if page else None
    analysis = analyse_measured(measured, replay)
    if as_json:
        print_json(analysis)
    else:
        from trainyard.report.render.summary import print_analysis, what_if_step
        from trainyard.report.render.terminal import NextStep

        pages = () if page else (NextStep("--page FILE", "timeline and ranks as an HTML page"),)
        print_analysis(analysis, console(full=full), full, (*pages, *what_if_step(analysis, files.paths)))
    if page:
        write_page(measured, analysis, page, extent, replay)


def _show_snapshot(files: TraceFiles, snapshot: str, page: str | None, full: bool, as_json: bool) -> None:
    """Shows a memory snapshot as `trace memory` does. `page`: the path of an HTML page to write, or None. Raises
    `UsageError` if other files were given with it."""
    from trainyard.cli.trace.memory import show_snapshot

    if others := [path for path in files.paths if path != snapshot]:
        raise click.UsageError(
            f"{snapshot} is a memory snapshot and cannot be combined with {others[0]}. Pass a single snapshot."
        )
    show_snapshot(Path(snapshot), files.limit, page, full, as_json)
