"""`trainyard diff`."""

from __future__ import annotations

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("before", type=InputFile())
@click.argument("after", type=InputFile())
@click.option("--strict", is_flag=True, help="Fail if a rank's file is damaged, instead of leaving it out.")
@click.option("--full", is_flag=True, help="Print every account, operation and note.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(before: str, after: str, strict: bool, full: bool, as_json: bool) -> None:
    """Compare BEFORE and AFTER, by account and by operation; the changes add up to the change in step time.

    Each is a run (id prefix, tag or folder), a trace path, or a file written by `plan --json`. If the two did different
    work, or it is unknown whether they did, this is reported, and no change is called better or worse.
    """
    from pathlib import Path

    from trainyard import api
    from trainyard.cli.support.output import console, print_json
    from trainyard.report.plans.plans_file import read as read_plans
    from trainyard.report.render.diff_terminal import print_comparison

    comparison = api.diff(before, after, strict=strict)
    if as_json:
        print_json(comparison)
    else:
        is_trace = Path(after).exists() and not (Path(after) / "run.json").is_file() and not read_plans(Path(after))
        print_comparison(comparison, console(full=full), full, after if is_trace else "")
