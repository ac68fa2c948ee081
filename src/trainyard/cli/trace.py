"""`trainyard trace`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.output import console, say
from trainyard.ledger import to_json


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option(
    "--window",
    type=click.Choice(["steps", "all"]),
    default="steps",
    show_default=True,
    help="Book each step, or the whole window as one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ledgers as JSON.")
@click.option("--page", type=click.Path(), help="Write the HTML page here too.")
@click.option("--top", default=8, show_default=True, help="How many kernels to list.")
@click.option("--parts", "all_parts", is_flag=True, help="List every rank's every step.")
def command(paths: tuple[str, ...], window: str, as_json: bool, page: str | None, top: int, all_parts: bool) -> None:
    """Where every nanosecond of a training step went: profiler files (or folders of them) of one or many ranks.

    Reads Kineto JSON, plain or gzipped: what torch.profiler writes, on CUDA, ROCm or the CPU alone.
    """
    from trainyard.cli.named import find_traces
    from trainyard.report.build import view_of_traces

    measured = find_traces(paths, window)
    if as_json:
        click.echo(to_json(measured.ledgers))
    else:
        from trainyard.report.terminal import print_parts, print_view

        view = view_of_traces(measured, draw=False)
        out = console()
        print_view(view, out, top)
        print_parts(measured.ledgers, out, everything=all_parts)
    if page:
        from trainyard.report import html

        html.write(view_of_traces(measured), Path(page))
        say(f"wrote {page}")
