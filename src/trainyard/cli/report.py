"""`trainyard report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run")
@click.option("--out", "-o", type=click.Path(), help="Where the page goes; else RUN's name with .html.")
@click.option("--json", "as_json", is_flag=True, help="Print where the page is as JSON.")
def command(run: str, out: str | None, as_json: bool) -> None:
    """One self-contained HTML page of RUN: a run (id prefix, tag or folder) or a trace path."""
    from trainyard.cli.named import find
    from trainyard.cli.output import print_json
    from trainyard.report import html

    named = find(run)
    out = out or f"{named.name}.html"
    html.write(named.view(), Path(out))
    if as_json:
        print_json({"name": named.name, "page": out})
    else:
        click.echo(out)
