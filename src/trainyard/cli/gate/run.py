"""`trainyard gate run JOB --base REV`: makes the pairs itself."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ACROSS, ALPHA, FORMAT, JSON, MARGIN, METRIC, PAIRS, TOGETHER


@click.command()
@click.argument("what", metavar="JOB.toml | -- COMMAND...", nargs=-1, required=True)
@click.option("--base", required=True, metavar="REV", help="The revision to hold it against.")
@click.option("--head", metavar="REV", help="The revision that is asked about; without it the folder as it is.")
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
    what: tuple[str, ...],
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
    """Run JOB.toml, or a training script of your own, with the code of two revisions in turns on this machine, until it
    is known whether HEAD is slower than BASE.

    Each revision is checked out in a git worktree; what git does not hold is not there. Which of a pair comes first is
    drawn by lot. The runs are kept in the store like any others.
    """
    from trainyard.cli.gate.interleaved_runs import made
    from trainyard.cli.gate.print_result import show
    from trainyard.cli.support.output import say
    from trainyard.compare.gate.gate_result import GateRequest
    from trainyard.compare.gate.verdict import Rule

    asked = GateRequest(metrics, Rule(alpha=alpha, margin=margin, cap=pairs))
    context.exit(show(made(what, base, head, asked, say, across, together), form, as_json))
