"""`trainyard demo`."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--out", "-o", type=click.Path(), default="trainyard-demo.html", show_default=True, help="The HTML page to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print ledgers, findings and tables as JSON.")
def command(out: str, as_json: bool) -> None:
    """Show the bundled sample trace: print its ledger, and write its HTML page.

    The trace is a real one: two CPU ranks train a small transformer with FSDP under the profiler (`make demo-trace`
    records it again). Needs no torch.
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
