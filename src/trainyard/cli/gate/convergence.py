"""`trainyard gate convergence`."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

from trainyard.cli.gate.gate_options import FULL
from trainyard.cli.support.pipes import InputFile


@click.command()
@click.argument("head", nargs=-1, type=InputFile())
@click.option("--base", multiple=True, type=InputFile(), help="A run to compare with; repeatable.")
@click.option("--golden", type=InputFile(Path), help="Compare with the curves in this file.")
@click.option("--store-golden", type=click.Path(path_type=Path), help="Write HEAD's curves to this file.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    metavar="PERCENT",
    help="Smallest relative difference in loss that matters.",
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 50, min_open=True),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Maximum rate of false alarms.",
)
@click.option(
    "--mllog", is_flag=True, help="HEAD and BASE are :::MLLOG result logs; BASE may also be reference points."
)
@FULL
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.pass_context
def command(
    context: click.Context,
    head: tuple[str, ...],
    base: tuple[str, ...],
    golden: Path | None,
    store_golden: Path | None,
    margin: float,
    alpha: float,
    mllog: bool,
    full: bool,
    as_json: bool,
) -> None:
    """Compare the losses of HEAD with those of --base, by seed: did a driver, compiler or number format change them?

    Runs (id prefix, tag or folder) are paired by seed; 3 to 5 seeds detect a difference of 0.25 %. Two base runs with
    the same seed (the same job, run twice) show how much runs differ by chance. Curves stored with --store-golden can
    replace --base.

    With --mllog, logs or folders of logs are judged by MLPerf's reference convergence points (RCP); --base is then a
    file of such points (rcps_*.json), or logs.

    Exit codes: 0 bitwise identical or within the margin, 1 different (including better), 2 bad input, 3 not enough
    evidence.
    """
    from trainyard import api
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.report.gate.convergence_terminal import print_convergence

    if not head:
        raise click.UsageError("No HEAD given. Pass at least one run.")
    if not (base or golden or store_golden):
        raise click.UsageError("Nothing to compare HEAD with. Pass --base, --golden or --store-golden.")
    if mllog:
        if golden or store_golden or not base:
            raise click.UsageError("--mllog needs --base (a file of reference points, or logs), and no golden file.")
        _compare_logs(context, head, base, as_json, full)
    if store_golden:
        stored = api.store_golden_curves(head, store_golden, say=say)
        if not (base or golden):
            if as_json:
                print_json(stored)
            return
    result = api.gate_convergence(head, base=base, golden=golden, margin=margin / 100, alpha=alpha / 100, say=say)
    if as_json:
        print_json(result)
    else:
        print_convergence(result, console(full=full), full)
    context.exit(result.exit_code)


def _compare_logs(
    context: click.Context, head: tuple[str, ...], base: tuple[str, ...], as_json: bool, full: bool
) -> NoReturn:
    """Gates the losses of log files against those of `base`, prints the result, and exits with its code. `head`,
    `base`: paths of log files."""
    from trainyard import api
    from trainyard.cli.support.output import console, print_json
    from trainyard.report.gate.convergence_terminal import print_reference

    result = api.gate_reference_points(head, base=base)
    if as_json:
        print_json(result)
    else:
        print_reference(result, console(full=full))
    context.exit(result.exit_code)
