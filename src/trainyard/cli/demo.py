"""`trainyard demo`."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--out", "-o", type=click.Path(), default="trainyard-demo.html", show_default=True, help="Where the page goes."
)
@click.option("--json", "as_json", is_flag=True, help="Print ledgers, findings and tables as JSON.")
def command(out: str, as_json: bool) -> None:
    """A small real trace that comes along with trainyard: the printed ledger and its page.

    Two CPU ranks trained a small transformer, sharded by FSDP, under the profiler (`make demo-trace` records it
    anew). Needs no torch.
    """
    from importlib import resources
    from pathlib import Path

    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.render import html
    from trainyard.report.render.terminal import print_parts, print_view
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.report.view.build_view import view_of
    from trainyard.report.view.timeline import timeline
    from trainyard.trace.measure import measure_files

    folder = Path(str(resources.files("trainyard") / "data" / "demo"))
    measured = measure_files([folder])
    analysis = analyse_measured(measured)
    view = view_of(analysis, timeline(measured))
    if as_json:
        print_json(analysis)
    else:
        print_view(view, console())
        print_parts(measured.ledgers, console())
    html.write(view, Path(out))
    say(f"wrote {out}")
