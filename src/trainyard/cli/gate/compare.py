"""`trainyard gate HEAD --base BASE`: compare stored runs."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ACROSS, ALPHA, FORMAT, FULL, JSON, MARGIN, METRIC


@click.command()
@click.argument("head", nargs=-1, required=True)
@click.option("--base", "bases", multiple=True, required=True, help="A run or revision to compare with; repeatable.")
@click.option("--job", default="", help="For revisions: only the runs of this job.")
@METRIC
@MARGIN
@ALPHA
@ACROSS
@FORMAT
@FULL
@JSON
@click.pass_context
def command(
    context: click.Context,
    head: tuple[str, ...],
    bases: tuple[str, ...],
    job: str,
    metrics: tuple[str, ...],
    margin: float,
    alpha: float,
    across: tuple[str, ...],
    form: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Test whether HEAD is slower than BASE. Each is one or more runs (id prefix, tag or folder), or a revision, which
    stands for all its stored runs.

    A run is one observation, however many steps it has. Runs are paired in the order of their start. The test is
    sequential: after each pair it may stop with the verdict worse, or not worse (a slowdown by the margin is ruled
    out). `trainyard gate run` makes such runs.

    Exit codes: 0 not worse, 1 worse, 3 not enough evidence.
    """
    from trainyard import api
    from trainyard.cli.gate.render_gate import render_gate
    from trainyard.cli.support.output import say

    gate = api.gate(head, base=bases, job=job, metrics=metrics, margin=margin, alpha=alpha, across=across, say=say)
    render_gate(gate, form, as_json, full)
    context.exit(gate.exit_code)
