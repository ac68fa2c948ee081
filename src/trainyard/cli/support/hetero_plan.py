"""`trainyard plan --machine h100:64,a100:128`: one training on a cluster with parts of different devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.predict.inputs.layout_space import PlannerInput


def show(
    wanted: PlannerInput, machines: str, framework: str, tokens: float, out: Path | None, check: bool, as_json: bool
) -> None:
    """Plan and print. `wanted.devices`: the number given, or 0. `framework`: the one given, or the default."""
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput
    from trainyard.formats.atomic import write_text
    from trainyard.predict.configs.uneven_stages import TELLS
    from trainyard.predict.hetero import best_pipelines, fleet
    from trainyard.predict.inputs.framework_support import FRAMEWORKS
    from trainyard.report.plans import hetero_tables as tables
    from trainyard.report.plans import plan_tables
    from trainyard.report.render.terminal import print_table

    parts = fleet.parts(machines)
    count = sum(part.devices for part in parts)
    if wanted.devices not in (0, count):
        added = " + ".join(f"{part.devices:,}" for part in parts)
        raise BadInput(f"--devices {wanted.devices:,}, but {machines} has {added} = {count:,}.", "Omit --devices.")
    if check:
        raise BadInput(
            f"--check with --machine {machines}: a configuration does not place its stages on devices.",
            "Omit --check, or pass one machine.",
        )
    if framework not in TELLS:
        raise BadInput(
            f"--for {framework}: its configuration does not set the number of layers per pipeline stage, which parts "
            "with different devices need.",
            f"Use one of {', '.join(TELLS)}.",
        )
    runner = FRAMEWORKS[framework]
    search_result = best_pipelines.find(
        wanted._replace(devices=sum(part.ranks for part in parts)), parts, runner, budget=tokens
    )
    record, best = tables.of_mixed(search_result, machines, tokens), search_result.pipelines[0]
    if out is not None:
        job, counts = best.choice.plan.job, [stage.layers for stage in best.stages]
        write_text(TELLS[framework](runner.tells(job), counts), out)
        say(f"wrote {out}: {runner.means}, {job.layout}. {tables.ranks(record)}")
    if as_json:
        print_json(record)
        return
    screen = console()
    where = " and ".join(str(part) for part in parts)
    sequences = f"{wanted.samples:,} sequences of {wanted.seq_len:,} tokens"
    screen.print(f"{wanted.model.name} on {where}: {sequences} per step", markup=False)
    for table in (
        tables.layouts(record), *tables.unlike(record), plan_tables.ledger(best.choice.plan), plan_tables.memory(record)
    ):  # fmt: skip
        screen.print()
        print_table(table, screen)
