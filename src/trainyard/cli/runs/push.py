"""`trainyard runs push [RUNS] --to URL`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from trainyard.cli.runs.options import FILE, JSON, REMOTE


@click.command()
@click.argument("runs", nargs=-1)
@click.option("--to", "url", **REMOTE)
@click.option(
    "--sign",
    "key",
    type=FILE,
    envvar="TRAINYARD_SIGNING_KEY",
    metavar="KEY",
    help="Sign each run with this SSH key; default: $TRAINYARD_SIGNING_KEY.",
)
@JSON
def command(runs: tuple[str, ...], url: str, key: Path | None, as_json: bool) -> None:
    """Copy RUNS to a folder or a URL; without RUNS, all runs that have ended.

    Runs that are already there are not sent again, but signed if --sign is given; checkpoints are not copied. If a run
    cannot be copied, the others still are; the exit code is then 2, or 4 after a failure of the environment."""
    from trainyard import units
    from trainyard.cli.runs.copying import copy_runs
    from trainyard.cli.support.output import say
    from trainyard.store.exchange.push_pull import push
    from trainyard.store.exchange.remote_store import Remote
    from trainyard.store.store import Store

    store, remote = Store(say=say), Remote(url)
    rows = store.rows()
    folders = [store.find(run) for run in runs] or [store.runs / row.id for row in rows if row.state != "incomplete"]
    if not runs and (left := len(rows) - len(folders)):
        say(f"not pushed: {units.counted(left, 'run')} that have not ended, or were killed.")
    copy_runs(
        {folder.name: partial(push, folder, remote, key) for folder in folders}, f"pushed to {remote.url}", as_json
    )
