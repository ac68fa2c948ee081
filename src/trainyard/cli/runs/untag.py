"""`trainyard runs untag NAME`."""

from __future__ import annotations

import click

from trainyard.cli.runs.options import JSON


@click.command()
@click.argument("name")
@JSON
def command(name: str, as_json: bool) -> None:
    """Remove a name from the run that has it."""
    from trainyard.cli.support.output import print_json, say
    from trainyard.store.store import Store
    from trainyard.store.stored_changes import RunTag

    untagged = RunTag(run=Store(say=say).untag(name).name, untagged=name)
    if as_json:
        print_json(untagged)
    else:
        say(f"run {untagged.run} is no longer tagged {name!r}.")
