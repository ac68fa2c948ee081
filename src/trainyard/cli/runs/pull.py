"""`trainyard runs pull [RUNS] --from URL`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from trainyard.cli.runs.options import FILE, JSON, REMOTE


@click.command()
@click.argument("runs", nargs=-1)
@click.option("--from", "url", **REMOTE)
@click.option(
    "--verify",
    "signers",
    type=FILE,
    envvar="TRAINYARD_ALLOWED_SIGNERS",
    metavar="FILE",
    help="Copy only runs signed by a key in this allowed-signers file; default: $TRAINYARD_ALLOWED_SIGNERS.",
)
@JSON
def command(runs: tuple[str, ...], url: str, signers: Path | None, as_json: bool) -> None:
    """Copy RUNS from a folder or a URL to which runs were pushed; without RUNS, all of them.

    Runs that are already here are not fetched again. If a run is damaged or was modified, the others are still copied;
    the exit code is then 2, or 4 after a failure of the environment."""
    from trainyard.cli.runs.copying import copy_runs
    from trainyard.cli.support.output import say
    from trainyard.store.exchange.push_pull import matching_ids, pull
    from trainyard.store.exchange.remote_store import Remote
    from trainyard.store.store import Store

    store, remote = Store(say=say), Remote(url)
    ids = matching_ids(remote, runs, say)
    copy_runs({id: partial(pull, store, remote, id, signers) for id in ids}, f"pulled from {remote.url}", as_json)
