"""`trainyard diff`."""

from __future__ import annotations

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("before", type=InputFile())
@click.argument("after", type=InputFile())
@click.option("--strict", is_flag=True, help="Refuse if a rank's file is damaged; else it is left out and named.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(before: str, after: str, strict: bool, as_json: bool) -> None:
    """What changed from BEFORE to AFTER, account by account; the changes sum to the change in step time.

    Each is a run (id prefix, tag or folder), a trace path, or what `plan --json` wrote. Where the two did different
    work, or nothing tells whether they did, it says so and calls nothing better or worse.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json
    from trainyard.report.render.diff_terminal import print_comparison

    comparison = api.diff(before, after, strict=strict)
    if as_json:
        print_json(comparison)
    else:
        print_comparison(comparison, console())
