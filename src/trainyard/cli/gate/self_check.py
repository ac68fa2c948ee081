"""`trainyard gate self-check JOB`: measure noise with pairs of identical runs."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import click

from trainyard.cli.gate.gate_options import ALPHA, MARGIN, ONE_METRIC, TOGETHER


@click.command()
@click.argument("target", metavar="JOB.toml | -- COMMAND...", nargs=-1, required=True)
@click.option("--pairs", type=click.IntRange(2, 24), default=8, show_default=True, help="Number of pairs of runs.")
@ONE_METRIC
@MARGIN
@ALPHA
@TOGETHER
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    target: tuple[str, ...], pairs: int, metric: str, margin: float, alpha: float, together: bool, as_json: bool
) -> None:
    """Compare JOB.toml or your own training script with itself on this machine.

    Shows how much the metric varies and from which source, how small a slowdown can be detected here with how many
    pairs, and how often a fixed threshold would raise a false alarm.
    """
    from trainyard.cli.gate.interleaved_runs import absolute_target
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.compare.gate.machine_noise import noise
    from trainyard.compare.gate.pairs import Pair
    from trainyard.compare.gate.verdict import Rule
    from trainyard.report.gate.noise_terminal import print_noise
    from trainyard.run.revisions.in_revision import run_pair
    from trainyard.store.store import Store

    store, here, job, lot = Store(say=say), Path.cwd(), absolute_target(target, together=together), SystemRandom()
    rule = Rule(alpha=alpha, margin=margin)
    pairs_run: list[Pair] = []
    for at in range(pairs):
        runs = run_pair([here, here], job, store, together=together)
        lot.shuffle(runs)
        pairs_run.append(Pair(*runs))
        say(f"pair {at + 1}/{pairs}")
    result = noise(pairs_run, metric, rule)
    if as_json:
        print_json(result)
    else:
        print_noise(result, rule, console())
