"""`trainyard diff`."""

from __future__ import annotations

import click

from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("before", type=InputFile())
@click.argument("after", type=InputFile())
@click.option("--strict", is_flag=True, help="Fail if a rank's file is damaged, instead of leaving it out.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(before: str, after: str, strict: bool, as_json: bool) -> None:
    """Compare BEFORE and AFTER, account by account; the changes add up to the change in step time.

    Each is a run (id prefix, tag or folder), a trace path, or a file written by `plan --json`. If the two did different
    work, or it is unknown whether they did, this is reported, and no change is called better or worse.
    """
    from trainyard.cli.support.output import console, print_json
    from trainyard.cli.support.run_names import find
    from trainyard.compare.account_changes import changes
    from trainyard.compare.comparable import comparable
    from trainyard.report.render.diff_terminal import as_plain, print_difference

    a, b = find(before, strict).side(), find(after, strict).side()
    judged = comparable(a, b)
    difference = changes(a, b, judge=judged.same_work)
    if as_json:
        print_json(as_plain(a, b, difference, judged))
    else:
        print_difference(a, b, difference, judged, console())
