"""`trainyard runs tag RUN NAME`."""

from __future__ import annotations

import click

from trainyard.cli.runs.options import JSON


@click.command()
@click.argument("run")
@click.argument("name")
@JSON
def command(run: str, name: str, as_json: bool) -> None:
    """Give RUN a name. A name belongs to one run: it is taken from the run that has it."""
    from trainyard.cli.support.output import print_json, say
    from trainyard.store.store import Store
    from trainyard.store.stored_changes import RunTag

    tagged = RunTag(run=Store(say=say).tag(run, name).name, tag=name)
    if as_json:
        print_json(tagged)
    else:
        say(f"run {tagged.run} is now tagged {name!r}.")
