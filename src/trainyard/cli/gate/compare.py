"""`trainyard gate HEAD --base BASE`: compare stored runs."""

from __future__ import annotations

import click

from trainyard.cli.gate.gate_options import ACROSS, ALPHA, FORMAT, JSON, MARGIN, METRIC


@click.command()
@click.argument("head", nargs=-1, required=True)
@click.option("--base", "bases", multiple=True, required=True, help="A run or revision to compare with; repeatable.")
@click.option("--job", default="", help="For revisions: only the runs of this job.")
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
    """Test whether HEAD is slower than BASE. Each is one or more runs (id prefix, tag or folder), or a revision, which
    stands for all its stored runs.

    A run is one observation, however many steps it has. Runs are paired in the order of their start. The test is
    sequential: after each pair it may stop with the verdict worse, or not worse (a slowdown by the margin is ruled
    out). `trainyard gate run` makes such runs.

    Exit codes: 0 not worse, 1 worse, 3 not enough evidence.
    """
    from trainyard.cli.gate.gate_sides import short_name, side
    from trainyard.cli.gate.print_result import show
    from trainyard.cli.gate.stored_traces import profile
    from trainyard.cli.support.output import say
    from trainyard.compare.gate.gate_result import GateRequest, gate
    from trainyard.compare.gate.pairs import paired
    from trainyard.compare.gate.verdict import Rule
    from trainyard.store.store import Store

    store = Store(say=say)
    pairs = paired(side(store, bases, job, or_before=True), side(store, head, job), across)
    request = GateRequest(metrics, Rule(alpha=alpha, margin=margin))
    context.exit(show(gate(short_name(bases), short_name(head), pairs, request, profile), form, as_json))
