"""`trainyard gate run JOB --base REV`: run two revisions in pairs and compare them."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import (
    ACROSS,
    ALPHA,
    FORMAT,
    FULL,
    JSON,
    MARGIN,
    METRIC,
    PAIRS,
    TARGET,
    TOGETHER,
)
from trainyard.cli.support.pipes import InputFile


@click.command()
@TARGET
@click.option("--base", required=True, metavar="REV", help="The revision to compare with.")
@click.option("--head", metavar="REV", help="The revision to test; default: the working tree.")
@click.option(
    "--base-job",
    type=InputFile(),
    metavar="FILE",
    help="The base's job file, if the base reads other keys than JOB has.",
)
@PAIRS
@METRIC
@MARGIN
@ALPHA
@TOGETHER
@ACROSS
@FORMAT
@FULL
@JSON
@click.pass_context
def command(
    context: click.Context,
    target: tuple[str, ...],
    base: str,
    head: str | None,
    base_job: str | None,
    pairs: int,
    metrics: tuple[str, ...],
    margin: float,
    alpha: float,
    together: bool,
    across: tuple[str, ...],
    form: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Run JOB.toml or your own training script with the code of two revisions, in randomised, interleaved pairs on this
    machine, until it is known whether HEAD is slower than BASE.

    Each revision is checked out into a git worktree, without files that git does not track. The runs are stored like
    any others.

    Exit codes: 0 not worse, 1 worse, 3 not enough evidence.
    """
    from trainyard import api
    from trainyard.cli.gate.render_gate import render_gate
    from trainyard.cli.support.output import say

    gate = api.gate_run(
        target, base=base, head=head, base_job=base_job, pairs=pairs, metrics=metrics, margin=margin, alpha=alpha,
        across=across, together=together, say=say,
    )  # fmt: skip
    render_gate(gate, form, as_json, full)
    context.exit(gate.exit_code)
