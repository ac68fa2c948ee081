"""`trainyard numerics kernels`."""

from __future__ import annotations

import click


@click.command()
@click.argument("command_words", metavar="[JOB.toml | -- COMMAND]", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--steps", metavar="A-B", default="0-1", show_default=True, help="Training steps to check, from 0.")
@click.option(
    "--elements",
    type=click.IntRange(min=1),
    default=1 << 20,
    show_default=True,
    help="Leave out operations on tensors with more elements.",
)
@click.option(
    "--calls",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Calls of an operation in a module that are checked in each phase of a step.",
)
@click.option("--full", is_flag=True, help="Print every operation, and all that were not checked.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    context: click.Context,
    command_words: tuple[str, ...],
    steps: str,
    elements: int,
    calls: int,
    full: bool,
    as_json: bool,
) -> None:
    """Check each floating-point operation of a training against float64, element by element.

    COMMAND is a training script, unchanged, with torchrun or without. It runs once. Each operation outside of compiled
    regions, forward, backward and in the optimizer, is computed again in float64 from the same inputs. The bound of an
    element accounts for the rounding of its format, for the number of terms that are added, and for the condition of
    the operation, which follows from 8 more float64 evaluations with inputs that are moved by rounding errors.

    An element is undetectable if an error of 100 % would stay below its bound. Views, random numbers, discontinuous
    operations, collectives and operations without a float64 kernel are not checked; they are counted with the reason.

    Exit codes: 0 all operations within their bounds, 1 some exceed them, 2 bad input, 3 nothing could be checked.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json
    from trainyard.report.numerics.kernels_terminal import print_kernels

    check = api.check_kernels(command_words, steps=steps, most_elements=elements, most_calls=calls)
    if as_json:
        print_json(check)
    else:
        print_kernels(check, console(full=full), full)
    context.exit(check.exit_code)
