"""`trainyard gate run JOB --base REV`: run two revisions in pairs and compare them."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ACROSS, ALPHA, FORMAT, JSON, MARGIN, METRIC, PAIRS, TOGETHER


@click.command()
@click.argument("target", metavar="JOB.toml | -- COMMAND...", nargs=-1, required=True)
@click.option("--base", required=True, metavar="REV", help="The revision to compare with.")
@click.option("--head", metavar="REV", help="The revision to test; default: the working tree.")
@PAIRS
@METRIC
@MARGIN
@ALPHA
@TOGETHER
@ACROSS
@FORMAT
@JSON
@click.pass_context
def command(
    context: click.Context,
    target: tuple[str, ...],
    base: str,
    head: str | None,
    pairs: int,
    metrics: tuple[str, ...],
    margin: float,
    alpha: float,
    together: bool,
    across: tuple[str, ...],
    form: str | None,
    as_json: bool,
) -> None:
    """Run JOB.toml or your own training script with the code of two revisions, interleaved on this machine, until it is
    known whether HEAD is slower than BASE.

    Each revision is checked out into a git worktree, without files that git does not track. The order within each pair
    is random. The runs are stored like any others.

    Exit codes: 0 not worse, 1 worse, 3 not enough evidence.
    """
    from trainyard.cli.gate.interleaved_runs import run_interleaved
    from trainyard.cli.gate.print_result import show
    from trainyard.cli.support.output import say
    from trainyard.compare.gate.gate_result import GateRequest
    from trainyard.compare.gate.verdict import Rule

    request = GateRequest(metrics, Rule(alpha=alpha, margin=margin, cap=pairs))
    context.exit(show(run_interleaved(target, base, head, request, say, across, together), form, as_json))
