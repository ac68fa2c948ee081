"""The file or the arguments that launch the recommended layout of a plan on its framework."""

from __future__ import annotations

from typing import NamedTuple

from trainyard.errors import BadInput
from trainyard.predict.configs.uneven_stages import WRITERS
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.report.plans import hetero_tables, plan_tables
from trainyard.report.plans.plans_file import Plans


class LaunchFile(NamedTuple):
    """`layout`: the kind of file, and the layout that it launches."""

    text: str
    layout: str


def launch_file(plans: Plans) -> LaunchFile:
    """Raises `BadInput` if the plans hold no layout but the checked configuration."""
    planned = plans.choices[plans.as_configured :]
    if not planned:
        raise BadInput("--out writes the recommended layout, and no layout fits.", "Leave out --out.")
    job, runner = planned[0].plan.job, FRAMEWORKS[plans.framework]
    text = runner.write_config(job)
    if plans.heterogeneous is None:
        layout = plan_tables.short(job.layout, job.recipe.schedule, job.recipe.offload)
        return LaunchFile(text, f"{runner.display_name}, {layout}.")
    counts = [stage.layers for stage in plans.heterogeneous.stages[0]]
    return LaunchFile(
        WRITERS[plans.framework](text, counts), f"{runner.display_name}, {job.layout}. {hetero_tables.ranks(plans)}"
    )
