"""`trainyard runs delete RUN`."""

from __future__ import annotations

import sys

import click

from trainyard.cli.runs.options import JSON


@click.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@JSON
def command(run: str, yes: bool, as_json: bool) -> None:
    """Delete a run's folder with all its files."""
    from trainyard.cli.support.output import confirm, print_json, say
    from trainyard.errors import BadInput
    from trainyard.store.store import Store
    from trainyard.store.stored_changes import DeletedRun

    store = Store(say=say)
    folder = store.find(run)
    if not yes and not sys.stdin.isatty():
        raise BadInput(f"Deleting {folder} needs a confirmation, but stdin is not a terminal.", "Add --yes.")
    if not yes:
        state = next((row.state for row in store.rows() if row.id == folder.name), "unreadable")
        confirm(f"Delete {folder} ({state}) with all its files?")
    deleted = DeletedRun(run=store.delete(str(folder)).name)
    if as_json:
        print_json(deleted)
    else:
        say(f"run {deleted.run} is deleted.")
