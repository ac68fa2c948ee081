"""The file or the arguments that launch the recommended layout of a plan on its framework."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from trainyard.errors import BadInput
from trainyard.machine import known
from trainyard.predict.configs.uneven_stages import WRITERS
from trainyard.predict.inputs.adapter_support import fine_tuned
from trainyard.report.plans import hetero_tables, plan_tables
from trainyard.report.plans.plans_file import Plans


class LaunchFile(NamedTuple):
    """`layout`: the kind of file, and the layout that it launches. `outside`: a sentence for each setting that the file
    cannot carry; `notes`: the text of a file of notes next to it, empty if the file itself has them as comments."""

    text: str
    layout: str
    outside: tuple[str, ...] = ()
    notes: str = ""


NOTES_SUFFIX = ".notes.txt"
"""Added to the name of a launch file for the name of its notes."""


def launch_file(plans: Plans, machine: str = "") -> LaunchFile:
    """The launch file of the recommended layout. `machine`: the name or path of the machine file that was planned for,
    which a job file contains, and other configurations do not; empty for the preset of the plans' name.

    Raises `BadInput` if the plans hold no layout but the checked configuration."""
    planned = plans.choices[plans.as_configured :]
    if not planned:
        raise BadInput("--out writes the recommended layout, and no layout fits.", "Leave out --out.")
    job, runner = planned[0].plan.job, fine_tuned(plans.framework, plans.fine_tuning)
    if plans.heterogeneous is None:
        job = replace(job, machine=machine or (plans.machine if plans.machine in known() else ""))
    text = runner.write_config(job)
    if plans.heterogeneous is None:
        layout = plan_tables.short(job.layout, job.recipe.schedule, job.recipe.offload)
        outside = (*runner.outside_config(job), *plans.outside_settings)
        notes = (
            "" if runner.has_comments and not plans.outside_settings else _notes(runner.display_name, layout, outside)
        )
        return LaunchFile(text, f"{runner.display_name}, {layout}.", outside, notes)
    counts = [stage.layers for stage in plans.heterogeneous.stages[0]]
    return LaunchFile(
        WRITERS[plans.framework](text, counts), f"{runner.display_name}, {job.layout}. {hetero_tables.ranks(plans)}"
    )


def _notes(framework: str, layout: str, outside: tuple[str, ...]) -> str:
    """The text of the notes: the settings that the launch file cannot carry."""
    if not outside:
        return ""
    head = f"Settings of the planned layout ({layout}) that the {framework} configuration cannot carry:"
    return "\n".join([head, *(f"- {sentence}" for sentence in outside)]) + "\n"
