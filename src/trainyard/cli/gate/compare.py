"""`trainyard gate HEAD --base BASE`: stored runs held against each other."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ACROSS, ALPHA, FORMAT, JSON, MARGIN, METRIC


@click.command()
@click.argument("head", nargs=-1, required=True)
@click.option("--base", "bases", multiple=True, required=True, help="A run or revision to hold it against; repeatable.")
@click.option("--job", default="", help="Of a revision's runs: those of this job.")
@METRIC
@MARGIN
@ALPHA
@ACROSS
@FORMAT
@JSON
@click.pass_context
def command(
    context: click.Context,
    head: tuple[str, ...],
    bases: tuple[str, ...],
    job: str,
    metrics: tuple[str, ...],
    margin: float,
    alpha: float,
    across: tuple[str, ...],
    form: str | None,
    as_json: bool,
) -> None:
    """Is HEAD slower than BASE? Each is named by runs (id prefix, tag or folder) or by a revision, which stands for all
    its stored runs.

    A run is one observation, however many steps it has. Runs are paired as they were started; after each pair it says
    worse, else not worse (a slowdown of the margin is ruled out), else goes on. `trainyard gate run` makes the runs.

    Exit codes: 0 not worse, 1 worse, 3 not enough evidence.
    """
    from trainyard.cli.gate.gate_sides import side, told
    from trainyard.cli.gate.print_result import show
    from trainyard.cli.gate.stored_traces import profile
    from trainyard.cli.support.output import say
    from trainyard.compare.gate.gate_result import GateRequest, gate
    from trainyard.compare.gate.pairs import paired
    from trainyard.compare.gate.verdict import Rule
    from trainyard.store.store import Store

    store = Store(say=say)
    found = paired(side(store, bases, job, or_before=True), side(store, head, job), across)
    asked = GateRequest(metrics, Rule(alpha=alpha, margin=margin))
    context.exit(show(gate(told(bases), told(head), found, asked, profile), form, as_json))
