"""`trainyard gate self-check JOB`: measure noise with pairs of identical runs."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ALPHA, FULL, JSON, MARGIN, ONE_METRIC, TARGET, TOGETHER


@click.command()
@TARGET
@click.option("--pairs", type=click.IntRange(2, 24), default=8, show_default=True, help="Number of pairs of runs.")
@ONE_METRIC
@MARGIN
@ALPHA
@TOGETHER
@FULL
@JSON
def command(
    target: tuple[str, ...],
    pairs: int,
    metric: str,
    margin: float,
    alpha: float,
    together: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Compare JOB.toml or your own training script with itself on this machine.

    Shows how much the metric varies and from which source, how small a slowdown can be detected here with how many
    pairs, and how often a fixed threshold would raise a false alarm.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.gate.noise_terminal import print_noise

    result = api.gate_self_check(
        target, pairs=pairs, metric=metric, margin=margin, alpha=alpha, together=together, say=say
    )
    if as_json:
        print_json(result)
    else:
        print_noise(result, console(full=full))
