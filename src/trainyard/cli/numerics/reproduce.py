"""`trainyard numerics reproduce`."""

from __future__ import annotations

import click


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--out", required=True, metavar="SCRIPT.py", help="New Python file for the script.")
@click.option("--rerun", is_flag=True, help="Allow to run the commands that are in the records.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(context: click.Context, a: str, b: str, out: str, rerun: bool, as_json: bool) -> None:
    """Write a script of a few lines that shows the first difference of A and B alone, and run it.

    A and B are folders as for `trainyard numerics compare`. Their commands are run again, in the present directory, to
    capture the operations that compute the first different tensor, and what enters them. The script needs only torch:
    it has the operations of A and of B, computes the error of each against float64, and exits with 1 if the fault
    shows. Inputs are random numbers if the fault shows with them, and those of the training otherwise. Operations with
    collectives run with one process for each rank.

    Exit codes: 0 the script shows the fault, 1 it does not, 2 bad input, 3 no difference that operations show.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.numerics.reproducer_terminal import print_reproducer

    result = api.reproduce_numerics(a, b, out, rerun=rerun, say=say)
    if as_json:
        print_json(result)
    else:
        print_reproducer(result, console())
    context.exit(result.exit_code)
