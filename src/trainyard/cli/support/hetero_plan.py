"""`trainyard plan --machine h100:64,a100:128`: one training over parts of unlike devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.predict.inputs.layout_space import PlannerInput


def show(
    wanted: PlannerInput, machines: str, framework: str, tokens: float, out: Path | None, check: bool, as_json: bool
) -> None:
    """`wanted.devices`: as they were said, or 0. `framework`: who was named, or else is usual."""
    from trainyard.cli.support.output import console, print_json, say
    from trainyard.errors import BadInput
    from trainyard.formats.atomic import write_text
    from trainyard.predict.configs.uneven_stages import WRITERS
    from trainyard.predict.hetero import best_pipelines, fleet
    from trainyard.predict.inputs.framework_support import FRAMEWORKS
    from trainyard.report.plans import hetero_tables as tables
    from trainyard.report.plans import plan_tables
    from trainyard.report.render.terminal import print_table

    parts = fleet.parse_parts(machines)
    count = sum(one.devices for one in parts)
    if wanted.devices not in (0, count):
        added = " + ".join(f"{one.devices:,}" for one in parts)
        raise BadInput(f"--devices {wanted.devices:,}, but {machines} are {added} = {count:,}.", "Leave out --devices.")
    if check:
        raise BadInput(
            f"--check with --machine {machines}: a configuration does not say which devices its stages are on."
        )
    if framework not in WRITERS:
        raise BadInput(
            f"--for {framework}: it is not told how many layers each pipeline stage has, and unlike parts take unlike "
            "numbers of them.",
            f"Take one of {', '.join(WRITERS)}.",
        )
    runner = FRAMEWORKS[framework]
    found = best_pipelines.find(wanted._replace(devices=sum(one.ranks for one in parts)), parts, runner, budget=tokens)
    made, best = tables.of_mixed(found, machines, tokens), found.pipelines[0]
    if out is not None:
        job, counts = best.choice.plan.job, [one.layers for one in best.stages]
        write_text(WRITERS[framework](runner.tells(job), counts), out)
        say(f"Written to {out}: {runner.means}, {job.layout}. {tables.ranks(made)}")
    if as_json:
        print_json(made)
        return
    screen = console()
    screen.print(f"{wanted.model.name} on {' and '.join(str(one) for one in parts)}: {wanted.samples:,} sequences of "
                 f"{wanted.seq_len:,} tokens a step", markup=False)  # fmt: skip
    for table in (
        tables.layouts(made), *tables.unlike(made), plan_tables.ledger(best.choice.plan), plan_tables.memory(made)
    ):  # fmt: skip
        screen.print()
        print_table(table, screen)
