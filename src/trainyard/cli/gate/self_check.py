"""`trainyard gate self-check JOB`: pairs that are alike."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import click

from trainyard.cli.gate.gate_options import ALPHA, MARGIN, ONE_METRIC, TOGETHER


@click.command()
@click.argument("what", metavar="JOB.toml | -- COMMAND...", nargs=-1, required=True)
@click.option("--pairs", type=click.IntRange(2, 24), default=8, show_default=True, help="Pairs of runs to make.")
@ONE_METRIC
@MARGIN
@ALPHA
@TOGETHER
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def command(
    what: tuple[str, ...], pairs: int, metric: str, margin: float, alpha: float, together: bool, as_json: bool
) -> None:
    """Run JOB.toml, or a training script of your own, against itself on this machine: what varies, where from, how
    small a slowdown can be shown here and with how many pairs, and what a fixed threshold would say of nothing.
    """
    from trainyard.cli.gate.interleaved_runs import what_to_run
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.compare.gate.machine_noise import noise
    from trainyard.compare.gate.pairs import Pair
    from trainyard.compare.gate.verdict import Rule
    from trainyard.report.gate.noise_terminal import print_noise
    from trainyard.run.revisions.in_revision import run_pair
    from trainyard.store.store import Store

    store, here, job, lot = Store(say=say), Path.cwd(), what_to_run(what, together=together), SystemRandom()
    rule = Rule(alpha=alpha, margin=margin)
    made: list[Pair] = []
    for at in range(pairs):
        both = run_pair([here, here], job, store, together=together)
        lot.shuffle(both)
        made.append(Pair(*both))
        say(f"pair {at + 1}/{pairs}")
    found = noise(made, metric, rule)
    if as_json:
        print_json(found)
    else:
        print_noise(found, rule, console())
