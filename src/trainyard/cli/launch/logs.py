"""`trainyard launch logs LAUNCH`."""

from __future__ import annotations

import click

from trainyard.cli.launch.launch_options import JSON, LAUNCH


@click.command()
@LAUNCH
@click.option("--lines", type=click.IntRange(min=1), default=20, show_default=True, help="Lines of each log.")
@click.option("--node", type=click.IntRange(min=0), help="Only the log of this node; 0 is the head.")
@JSON
def command(launch: str, lines: int, node: int | None, as_json: bool) -> None:
    """Print the end of each log of LAUNCH (an id or the beginning of it)."""
    from trainyard import api
    from trainyard.cli.support.output import echo, print_json, say

    result = api.launch_logs(launch, lines=lines, node=node)
    if as_json:
        print_json(result)
        return
    for log in result.logs:
        echo(f"==> {log.path.removeprefix(f'{result.launch.folder}/')}")
        for line in log.lines:
            echo(line)
    if not result.logs:
        say(f"launch {result.launch.id} has no logs yet, in {result.launch.folder}/logs.")
