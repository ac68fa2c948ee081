"""`trainyard demo`."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--out", "-o", type=click.Path(), default="trainyard-demo.html", show_default=True, help="The HTML page to write."
)
@click.option("--full", is_flag=True, help="Print every table and row.")
@click.option("--json", "as_json", is_flag=True, help="Print ledgers, findings and tables as JSON.")
def command(out: str, full: bool, as_json: bool) -> None:
    """Show the bundled sample trace: print its ledger, and write its HTML page.

    The trace is a real one: two CPU ranks train a small transformer with FSDP under the profiler (`make demo-trace`
    records it again). Needs no torch.
    """
    from importlib import resources
    from pathlib import Path

    from trainyard.cli.support.output import console, print_json
    from trainyard.cli.trace.trace_options import write_page
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.trace.measure import measure_files

    folder = Path(str(resources.files("trainyard") / "data" / "demo"))
    measured = measure_files([folder])
    analysis = analyse_measured(measured)
    if as_json:
        print_json(analysis)
    else:
        from trainyard.report.render.summary import print_analysis
        from trainyard.report.render.terminal import NextStep

        steps = (NextStep(out, "timeline and ranks, in a browser"), NextStep("trainyard trace PATH", "your own traces"))
        print_analysis(analysis, console(full=full), full, steps)
    write_page(measured, analysis, out)
