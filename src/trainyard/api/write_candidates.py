"""Write the launch configurations of a plan's candidates, and the commands that run and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from trainyard.errors import PlaceUnwritable
from trainyard.formats.atomic import write_text
from trainyard.machine import Machine
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.printable import encode_json
from trainyard.report.plans import launch_commands
from trainyard.report.plans.launch_files import NOTES_SUFFIX, launch_file
from trainyard.report.plans.measured_plans import MeasuredCandidate, MeasuredPlans
from trainyard.report.plans.plans_file import PlanRecord, Plans


def write_candidates(
    result: MeasuredPlans,
    plans: Plans,
    records: Sequence[PlanRecord],
    machine: Machine,
    machine_name: str,
    folder: Path,
) -> MeasuredPlans:
    """Writes the launch configuration of each candidate and, for other frameworks than ours, its plan to `folder`.

    `records`: the candidates in `plans`; `machine_name`: the argument that `machine` was loaded from. Returns the
    result with the paths and the commands to run. Raises `PlaceUnwritable`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceUnwritable(f"{folder} cannot be created: {error.strerror}.") from error
    candidates = tuple(
        _write_candidate(candidate, plans, record, machine, folder)
        for candidate, record in zip(result.candidates, records, strict=True)
    )
    names = [candidate.name for candidate in candidates]
    fits = (launch_commands.fit_command(names, machine_name),) if result.framework == "trainyard" else ()
    feedback = launch_commands.explain_feedback(result.framework)
    return replace(result, candidates=candidates, feedback=feedback, feedback_commands=fits)


def _write_candidate(
    candidate: MeasuredCandidate, plans: Plans, record: PlanRecord, machine: Machine, folder: Path
) -> MeasuredCandidate:
    """Writes one candidate's files; returns it with their paths and its commands."""
    alone = replace(plans, choices=(record,), pareto_front=(), scaling=None)
    path = folder / f"{candidate.name}{launch_commands.SUFFIXES[plans.framework]}"
    ours = plans.framework == "trainyard"
    launch = launch_file(alone)
    texts = {path: FRAMEWORKS[plans.framework].write_config(candidate.job) if ours else launch.text}
    if launch.notes:
        texts[path.with_name(path.name + NOTES_SUFFIX)] = launch.notes
    if not ours:
        texts[folder / f"{candidate.name}{launch_commands.PLAN_SUFFIX}"] = encode_json(alone).decode()
    for file, text in texts.items():
        write_text(text, file)
    commands = launch_commands.launch_commands(
        plans.framework, candidate.job, candidate.name, str(path), machine.ranks_per_host
    )
    return replace(candidate, files=tuple(map(str, texts)), commands=commands)
