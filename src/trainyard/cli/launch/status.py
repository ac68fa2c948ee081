"""`trainyard launch status [LAUNCH]`."""

from __future__ import annotations

import click

from trainyard.cli.launch.launch_options import JSON


@click.command()
@click.argument("launch", metavar="[LAUNCH]", default="")
@JSON
@click.option("--full", is_flag=True, help="List every launch, not one screen.")
def command(launch: str, as_json: bool, full: bool) -> None:
    """Show the status of LAUNCH (an id or the beginning of it) as its scheduler reports it; without LAUNCH, list the
    stored launches, newest first."""
    from trainyard import api
    from trainyard.cli.launch.print_launch import print_launches, print_report

    if launch:
        print_report(api.launch_status(launch), as_json)
    else:
        print_launches(api.launch_list(), as_json, full)
