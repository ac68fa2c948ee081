"""`trainyard plan list`: the models and machines that are known by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from trainyard.report.plans.catalogue import Catalogue


@click.command()
@click.argument("kind", metavar="[models|machines]", required=False, type=click.Choice(["models", "machines"]))
@click.option("--full", is_flag=True, help="Print all data types, prices and the sources of the numbers.")
@click.option("--json", "as_json", is_flag=True, help="Print the models and machines as JSON, each number with source.")
def command(kind: Literal["models", "machines"] | None, full: bool, as_json: bool) -> None:
    """List the models and machines that `plan` knows by name, with their sizes and rates.

    Any other model is planned from its Hugging Face config.json or a TOML file, any other machine from a TOML file,
    which trainyard probe --out FILE writes for the machine it runs on.

    Exit codes: 0 success, 2 bad input.
    """
    from trainyard.api import catalogue
    from trainyard.cli.support.output import console, print_json
    from trainyard.report.plans import catalogue_tables
    from trainyard.report.render.terminal import print_table

    known = catalogue(kind or "")
    if as_json:
        print_json(known)
        return
    if not (kind or full):
        _print_names(known)
        return
    screen = console(full=full)
    for number, table in enumerate(catalogue_tables.tables(known, full)):
        if number:
            screen.print()
        print_table(table, screen)
    if not full:
        screen.print(f"Sources: trainyard plan list {kind} --full", style="dim")


def _print_names(known: Catalogue) -> None:
    """Prints the names of models by workload, and of machines: one screen without tables."""
    from trainyard.cli.support.output import console
    from trainyard.report.plans import catalogue_tables

    screen = console()
    workloads = dict.fromkeys(model.workload for model in known.models.values())
    for workload in workloads:
        models = [model for model in known.models.values() if model.workload == workload]
        names = [model.name + "*" * (not model.planned) for model in models]
        screen.print(f"Models, {workload}: {', '.join(names)}", markup=False)
    if not all(model.planned for model in known.models.values()):
        screen.print(catalogue_tables.NOT_PLANNED, markup=False)
    screen.print(f"\nMachines: {', '.join(known.machines)}", markup=False)
    screen.print("\nWhere to look next\n  trainyard plan list models\n  trainyard plan list machines")
