"""`trainyard runs`: list the stored runs."""

from __future__ import annotations

import click

from trainyard.cli.runs.options import JSON


@click.command()
@click.option("--reindex", is_flag=True, help="Rebuild the index from the run folders.")
@JSON
@click.option("--full", is_flag=True, help="List every run, not one screen.")
def command(reindex: bool, as_json: bool, full: bool) -> None:
    """List the stored runs, newest first. Modes take a run by id prefix, tag or folder."""
    from trainyard import units
    from trainyard.cli.support.output import console, echo, print_json, say
    from trainyard.report.render.run_list import MOST, table
    from trainyard.report.render.terminal import print_table
    from trainyard.store.store import Store
    from trainyard.store.stored_changes import RunList

    store = Store(say=say)
    if reindex:
        say(f"indexed {units.counted(store.reindex(), 'run')} in {store.root}.")
    rows = store.rows()
    if as_json:
        print_json(RunList(runs=tuple(rows)))
    elif rows:
        shown = rows if full or len(rows) <= MOST + 1 else rows[:MOST]
        print_table(table(shown), console(full=full))
        if len(shown) < len(rows):
            echo(f"{len(rows) - len(shown):,} older runs: --full lists them.")
    else:
        say(f"There are no runs in {store.root}. `trainyard run JOB.toml` creates one.")
