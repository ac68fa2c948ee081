"""`trainyard numerics compare`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--exact", is_flag=True, help="Both must be equal bit by bit, as of a deterministic program run twice.")
@click.option("--page", type=click.Path(), help="Also write an HTML page to this file.")
@click.option(
    "--reproducer", type=click.Path(), metavar="SCRIPT.py", help="Script of `numerics reproduce`, shown by the page."
)
@click.option("--full", is_flag=True, help="Print every module, step and note.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.pass_context
def command(
    context: click.Context,
    a: str,
    b: str,
    exact: bool,
    page: str | None,
    reproducer: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Find the first tensor of B that rounding does not explain: its module, operation and line of code.

    A and B are folders that `trainyard numerics record` wrote. A is of the program that is right, with its float64
    reference and jittered replicas; B is of the program in question, and its plain run is enough. They may differ in
    kernels, compiler, dtype and layout.

    Exit codes: 0 the same within rounding, 1 different, 2 bad input, 3 cannot tell: rounding is of the order of the
    values, or A lacks its reference.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.numerics.numerics_terminal import print_numerics

    if reproducer and not page:
        raise click.UsageError("--reproducer is shown by the page: pass --page too.")
    report = api.compare_numerics(a, b, exact=exact, reproducer=reproducer)
    if as_json:
        print_json(report)
    else:
        print_numerics(report, console(full=full), full)
    if page:
        from trainyard.report.numerics import numerics_page

        numerics_page.write(report, Path(page))
        say(f"wrote {page}")
    context.exit(report.exit_code)
