"""`trainyard probe`: benchmark this machine."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(context_settings={"allow_extra_args": True})
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks; default: one per device.")
@click.option("--dtype", default="float32", show_default=True, help="Data type of matmuls and attention.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Longest wait until other processes are idle; 0: measure at once.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write a machine file for `plan --machine`.")
@click.option("--full", is_flag=True, help="Print every timed call and all constants.")
@click.option("--json", "as_json", is_flag=True, help="Print the machine and the timed calls as JSON.")
@click.pass_context
def command(
    context: click.Context,
    ranks: int | None,
    dtype: str,
    wait_s: float,
    out: Path | None,
    full: bool,
    as_json: bool,
) -> None:
    """Benchmark this machine for the planner: matmuls, attention, memory, launches and collectives."""
    from trainyard.api import probe
    from trainyard.cli.probe.print_machine import print_machine
    from trainyard.cli.support.output import say
    from trainyard.report.plans import probe_tables

    if context.args:
        runs = " ".join(context.args)
        raise click.UsageError(
            f"Got unexpected arguments: {runs}. To fit constants to runs: trainyard probe fit {runs} --machine FILE",
            context,
        )
    probed = probe(ranks=ranks, dtype=dtype, wait_s=wait_s, say=say)
    tables = (
        [probe_tables.calls(probed), probe_tables.constants(probed.machine)] if full else [probe_tables.rates(probed)]
    )
    print_machine(probed, tables, out, full=full, as_json=as_json, warnings=probed.warnings)
