"""`trainyard numerics`: is it still the same training?"""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile


@click.group()
def command() -> None:
    """Is it still the same training?"""


@command.command()
@click.argument("job", metavar="[JOB.toml]", required=False, type=InputFile(Path))
@click.option("--only", metavar="TEXT", default="", help="Only the mixes whose name holds TEXT.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Steps to train.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def parity(job: Path | None, only: str, steps: int, as_json: bool) -> None:
    """Losses and gradient norms of many ways to spread one training, each against a single process.

    Without a job: every kind of parallelism, precision and recomputation, alone and together, on small models. With
    one: its own layout. Ranks are processes of this machine, of one thread each, also where the machine has fewer
    cores. Exit code 1 when a mix is different, 2 when JOB.toml is refused, which --json says as a verdict too.
    """
    from trainyard import job_file as jobs
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput, BadJob
    from trainyard.numerics.parity import ParityMix, compare
    from trainyard.numerics.parity_mixes import MIXES
    from trainyard.numerics.parity_trial import trial
    from trainyard.report.render.parity_table import table
    from trainyard.report.render.terminal import print_table

    mixes = [ParityMix(wanted.name, wanted) for wanted in [jobs.load(job)]] if job else MIXES
    mixes = [mix for mix in mixes if only in mix.name]
    if not mixes:
        raise BadInput(f"no mix has {only!r} in its name.", "Leave --only out to see all names.")
    results = []
    for one in compare(mixes, trial, steps):
        results.append(one)
        say(f"{one.mix}: {one.verdict}, {one.seconds:.1f} s")
    if as_json:
        print_json(results)
    if job and results[0].verdict == "refused":
        raise BadJob(results[0].why)
    if not as_json:
        print_table(table(results, steps), console())
    if any(one.verdict == "different" for one in results):
        raise click.exceptions.Exit(1)
