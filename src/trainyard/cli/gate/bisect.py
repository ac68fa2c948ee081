"""`trainyard gate bisect GOOD BAD -- TARGET`: find the commit that caused a slowdown."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ALPHA, FULL, JSON, MARGIN, ONE_METRIC, PAIRS, TARGET, TOGETHER


@click.command()
@click.argument("good")
@click.argument("bad")
@TARGET
@PAIRS
@ONE_METRIC
@MARGIN
@ALPHA
@TOGETHER
@FULL
@JSON
@click.pass_context
def command(
    context: click.Context,
    good: str,
    bad: str,
    target: tuple[str, ...],
    pairs: int,
    metric: str,
    margin: float,
    alpha: float,
    together: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Find the commit between GOOD and BAD (first parents) that slowed down JOB.toml or your own script.

    Each step compares a commit with GOOD in randomised, interleaved runs, like `trainyard gate run`; --alpha bounds the
    error rate of all steps together. A commit without a clear verdict is skipped and remains a suspect.

    Exit codes: 0 one commit was found, or BAD is not slower; 3 several suspects are left, or the result is unclear.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.gate.bisect_terminal import print_bisection

    result = api.gate_bisect(
        target, good=good, bad=bad, pairs=pairs, metric=metric, margin=margin, alpha=alpha, together=together, say=say
    )
    if as_json:
        print_json(result)
    else:
        print_bisection(result, console(full=full), full)
    context.exit(result.exit_code)
