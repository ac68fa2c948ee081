"""`trainyard numerics bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("a")
@click.argument("command_words", metavar="-- COMMAND", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for finished trials.")
@click.option(
    "--env",
    "variables",
    metavar="NAME=A:B",
    multiple=True,
    help="Environment variable with its values in A and B; an empty value: not set.",
)
@click.option(
    "--swap",
    type=click.Choice(["eager", "float64", "outputs"]),
    help="Search modules of COMMAND: all but some are not compiled, or computed in float64, or all start from A.",
)
@click.option("--rerun", is_flag=True, help="Allow to run the command that is in the record.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    context: click.Context,
    a: str,
    command_words: tuple[str, ...],
    out: Path,
    variables: tuple[str, ...],
    swap: Literal["eager", "float64", "outputs"] | None,
    rerun: bool,
    as_json: bool,
) -> None:
    """Find the option, variable, interpreter or module from which COMMAND differs numerically from A.

    A is a folder that `trainyard numerics record` wrote, with its reference and replicas. Its command is run with some
    of the options of COMMAND, with its interpreter (and the libraries of that), or with some of the variables, until
    the smallest set is left that makes the training differ by more than rounding. A repeated call continues.

    With --swap, only COMMAND is run: some of its modules are as they are, and all others are not compiled (eager), or
    each of their operations is computed in float64 and rounded (float64), until the smallest part is left that makes
    the training differ. With --swap outputs, the values of A are stored, and COMMAND is recorded once; the outputs of
    its modules, their gradients, and the gradients and weights of parameters are replaced by those of A after they were
    recorded. Each module is so compared from the same inputs, and each that differs is a cause of its own.

    Exit codes: 0 one cause, 1 several, 2 bad input, 3 not enough evidence: A differs from itself,
    COMMAND does not differ, or differs whatever is swapped, 4 a command failed.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput
    from trainyard.report.numerics.bisection_terminal import print_bisection

    values: dict[str, tuple[str | None, str | None]] = {}
    for text in variables:
        name, equals, both = text.partition("=")
        of_a, colon, of_b = both.partition(":")
        if not (name and equals and colon):
            raise BadInput(
                f"--env {text!r}: not of the form NAME=A_VALUE:B_VALUE.", "For example --env OMP_NUM_THREADS=1:8."
            )
        values[name] = (of_a or None, of_b or None)
    result = api.bisect_numerics(a, command_words, out, variables=values, swap=swap, rerun=rerun, say=say)
    if as_json:
        print_json(result)
    else:
        print_bisection(result, console())
    context.exit(result.exit_code)
