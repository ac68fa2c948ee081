"""`trainyard trace what-if PATH... --change network=2x`."""

from __future__ import annotations

import click

from trainyard.cli.support.output import console, print_json, say
from trainyard.cli.trace.trace_options import FORMULAS, FULL, JSON, PAGE, WINDOW, TraceFiles, reads_traces, write_page


@click.command()
@WINDOW
@FORMULAS
@reads_traces
@click.option(
    "--change",
    "changes",
    multiple=True,
    required=True,
    help="network=2x, no-stragglers, ...; repeatable.",
)
@PAGE
@FULL
@JSON
def command(files: TraceFiles, changes: tuple[str, ...], page: str | None, full: bool, as_json: bool) -> None:
    """Predict the steps of a trace with changes applied, by replaying the dependencies between their operations.

    \b
    no-stragglers         all ranks are as fast as those that are not late
    no-launch-gaps        the host is infinitely fast
    no-syncs              the host does not wait for the device
    perfect-overlap       nothing waits for communication before its step ends
    rank:7=typical        rank 7 is as fast as the other ranks, which keep their times
    without:RULE          the cause of the finding of that rule is removed
    network=2x            transfers run at twice the speed (0.5x: at half)
    memory=2x             so does memory-bound work: pointwise ops, norms, the optimizer
    ACCOUNT=2x            so does the work of an account: compute/norm, comm/all_gather@dp_shard
    ACCOUNT=0             the account takes no time: data_wait=0
    ACCOUNT=overlap       nothing waits for it: comm/all_gather=overlap
    op:NAME=2x            so does the work of the ops of that name; * matches any text
    op:NAME=roofline      ops run at the speed that arithmetic and memory traffic allow
    """
    from rich.text import Text

    from trainyard.diagnose.predict_changes import predict_changes
    from trainyard.report.render.fitted_table import plain
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.report.view.fact_tables import prediction_table, prediction_title
    from trainyard.report.view.trace_results import predicted_steps

    measured = files.measure()
    prediction = predict_changes(measured, changes)
    result = predicted_steps(measured, prediction)
    for warning in result.warnings:
        say(warning)
    if as_json:
        print_json(result)
    else:
        out = console(full=full)
        out.print(Text(plain(prediction_title(result)), style="bold"))
        print_table(prediction_table(result, full), out)
    if page:
        write_page(prediction.would, analyse_measured(prediction.would), page)
