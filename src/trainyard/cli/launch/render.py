"""`trainyard launch render JOB.toml --on LAUNCHER`: print what would be submitted."""

from __future__ import annotations

from typing import Any

import click

from trainyard.cli.launch.launch_options import JOB, JSON, launch_options, options_of


@click.command()
@JOB
@launch_options
@JSON
def command(job: str, on: str, as_json: bool, **given: Any) -> None:
    """Print the files that `trainyard launch` would submit, without submitting them.

    Only the store and the id of the launch, which does not exist yet, are placeholders.
    """
    from trainyard import api
    from trainyard.cli.support.output import echo, print_json, say

    rendered = api.launch_render(job, on=on, options=options_of(given))
    if as_json:
        print_json(rendered)
        return
    for name, text in rendered.files.items():
        if len(rendered.files) > 1:
            say(f"{name}:")
        echo(text, newline=False)
