"""Print the plan of a step of reinforcement learning as one screen, in full, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.cli.support.output import console, print_json

if TYPE_CHECKING:
    from trainyard.report.plans.rollout_plan import RolloutPlan


def print_rollout(result: RolloutPlan, *, full: bool, as_json: bool) -> None:
    """Prints the plan; with `full` its assumptions too."""
    from trainyard.report.plans import rollout_tables
    from trainyard.report.render.terminal import next_steps, print_table
    from trainyard.report.view.next_step import NextStep

    if as_json:
        print_json(result)
        return
    screen = console(full=full)
    screen.print(rollout_tables.headline(result), markup=False)
    tables = [rollout_tables.modes(result), rollout_tables.generation(result), rollout_tables.training(result)]
    for table in (*tables, rollout_tables.assumptions(result)) if full else tables:
        screen.print()
        print_table(table, screen)
    for sentence in rollout_tables.reasons(result):
        screen.print(f"\n{sentence}", markup=False)
    screen.print("\n" + "\n".join((*result.notes, *result.limits)), markup=False)
    if not full:
        screen.print(*next_steps((NextStep("--full", "the constants with their sources"),), screen.width), sep="\n")
