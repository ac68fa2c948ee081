"""`trainyard numerics parity`."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("job", metavar="[JOB.toml]", required=False, type=InputFile(Path))
@click.option("--only", metavar="TEXT", default="", help="Run only the mixes whose names contain TEXT.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Number of steps to train.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@click.option("--full", is_flag=True, help="Print every mix, not one screen.")
def command(job: Path | None, only: str, steps: int, as_json: bool, full: bool) -> None:
    """Compare losses and gradient norms of parallel layouts with those of a single process.

    Without a job: every parallelism, precision and recomputation, alone and combined, on small models. With JOB.toml:
    the job's own layout. Ranks are processes on this machine with one thread each, even if it has fewer cores.
    Tolerances follow from rounding: one process trains 8 more times, with every sum jittered by one unit in the last
    place.

    Exit codes: 0 all the same, 1 a mix differs, 2 JOB.toml is refused (with --json also reported as a verdict).
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadJob
    from trainyard.report.render.parity_table import headline, table
    from trainyard.report.render.terminal import print_table

    results = api.parity(
        job, only=only, steps=steps, progress=lambda done: say(f"{done.mix}: {done.verdict}, {done.seconds:.1f} s")
    )
    if as_json:
        print_json(results)
    if job and results.results[0].verdict == "refused":
        raise BadJob(results.results[0].reason)
    if not as_json:
        screen = console(full=full)
        screen.print(headline(results) + "\n", style="bold", markup=False)
        print_table(table(results, full), screen)
    if results.different:
        raise click.exceptions.Exit(1)
