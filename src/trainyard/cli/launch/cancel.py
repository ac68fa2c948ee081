"""`trainyard launch cancel LAUNCH`."""

from __future__ import annotations

import click

from trainyard.cli.launch.launch_options import JSON, LAUNCH


@click.command()
@LAUNCH
@click.option("--save", is_flag=True, help="Ask the job to save its state and leave, instead of ending it at once.")
@JSON
def command(launch: str, save: bool, as_json: bool) -> None:
    """End LAUNCH (an id or the beginning of it). A launch that is over is left as it is."""
    from trainyard import api
    from trainyard.cli.launch.print_launch import print_report

    print_report(api.launch_cancel(launch, save=save), as_json)
