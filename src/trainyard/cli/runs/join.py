"""`trainyard runs join PART...`."""

from __future__ import annotations

import click

from trainyard.cli.run.run_options import FULL, JSON, QUIET, TAG


@click.command()
@click.argument("parts", metavar="PART...", nargs=-1, required=True)
@TAG
@JSON
@FULL
@QUIET
def command(parts: tuple[str, ...], tag: str, as_json: bool, full: bool, quiet: bool) -> None:
    """Make one run of the parts that the nodes of a job recorded, and show it.

    A PART is a node's run folder, an archive of it, or a stored run. Clocks are aligned, and the ledger and findings
    are those of all ranks. Ranks whose part is not given are listed as missing: join the run again with further parts.
    """
    from trainyard import api
    from trainyard.cli.run.print_run import show_run
    from trainyard.cli.run.run_options import script_session_of

    show_run(api.join(parts, session=script_session_of(tag, quiet, "")), as_json, full)
