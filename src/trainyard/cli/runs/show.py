"""`trainyard runs show RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trainyard.cli.runs.options import JSON

if TYPE_CHECKING:
    from trainyard.report.view.run_result import RunResult


@click.command()
@click.argument("run")
@JSON
@click.option("--full", is_flag=True, help="Print every table and the provenance, not one screen.")
@click.pass_context
def command(context: click.Context, run: str, as_json: bool, full: bool) -> None:
    """Show RUN: its figures, its mean ledger and its provenance.

    For a damaged run, the readable parts are shown, and the exit code is 2."""
    from trainyard.api.named_inputs import measure_run
    from trainyard.cli.support.output import print_json, say
    from trainyard.errors import BadInput
    from trainyard.report.view.run_result import result_of_run
    from trainyard.store.run_damage import join_reasons, missing_evidence, read_any
    from trainyard.store.store import Store

    store = Store(say=say)
    folder = store.find(run)
    stored = read_any(folder)
    if stored.state == "damaged":
        say(f"{folder}: the run is damaged: {stored.failure}.")
    missing = missing_evidence(folder)
    measured = measure_run(store, stored, folder, say=say) if stored.ledgers and not missing else None
    result = result_of_run(stored, folder, measured, missing=missing)
    if as_json:
        print_json(result)
    else:
        _show(result, full)
    if missing:
        say(f"{folder}: missing files ({len(missing)}): {join_reasons(missing)}.")
    if stored.state == "damaged":
        context.exit(BadInput.exit_code)


def _show(result: RunResult, full: bool) -> None:
    """Prints a stored run's analysis; `full` adds its folder, injected faults and provenance."""
    from pathlib import Path

    from trainyard.cli.run.print_run import full_command, suggest_page
    from trainyard.cli.support.output import console, echo
    from trainyard.report.render.chaos_table import table
    from trainyard.report.render.fitted_table import plain
    from trainyard.report.render.provenance import provenance_rows
    from trainyard.report.render.summary import print_analysis
    from trainyard.report.render.terminal import print_table

    screen = console(full=full)
    folder = f"  {result.folder}" if full else ""
    echo(f"run {Path(result.folder).name}  {plain(result.started)}{folder}\n")
    print_analysis(result.analysis, screen, full, suggest_page(result), full_command(result))
    if full and result.chaos:
        screen.print()
        print_table(table(result.chaos), screen)
    if full and (rows := provenance_rows(result)):
        echo("\nprovenance")
        for name, text in rows:
            echo(f"  {name}: {plain(text)}")
