"""Write the launch configurations of a plan's candidates, and the commands that run and compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from trainyard.errors import BadInput, PlaceUnwritable
from trainyard.formats.atomic import write_text
from trainyard.formats.regular_files import is_regular, read_bytes
from trainyard.machine import Machine
from trainyard.predict.inputs.framework_support import FRAMEWORKS
from trainyard.printable import encode_json, paired
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
    result with the paths and the commands to run. Raises `PlaceUnwritable`, or `BadInput` if a file would replace one
    with another content."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceUnwritable(f"{folder} cannot be created: {error.strerror}.") from error
    files = [
        _launch_files(candidate, plans, record, folder)
        for candidate, record in zip(result.candidates, records, strict=True)
    ]
    _refuse_to_replace({file: text for texts in files for file, text in texts.items()})
    for texts in files:
        for file, text in texts.items():
            write_text(text, file)
    candidates = tuple(
        _with_commands(candidate, plans.framework, texts, machine)
        for candidate, texts in zip(result.candidates, files, strict=True)
    )
    names = [candidate.name for candidate in candidates]
    fits = (launch_commands.fit_command(names, machine_name),) if result.framework == "trainyard" else ()
    feedback = launch_commands.explain_feedback(result.framework)
    return replace(result, candidates=candidates, feedback=feedback, feedback_commands=fits)


def _launch_files(candidate: MeasuredCandidate, plans: Plans, record: PlanRecord, folder: Path) -> dict[Path, str]:
    """The files of one candidate, its launch configuration first, with their texts."""
    alone = replace(plans, choices=(record,), pareto_front=(), scaling=None)
    path = folder / f"{candidate.name}{launch_commands.SUFFIXES[plans.framework]}"
    ours = plans.framework == "trainyard"
    launch = launch_file(alone)
    texts = {path: FRAMEWORKS[plans.framework].write_config(candidate.job) if ours else launch.text}
    if launch.notes:
        texts[path.with_name(path.name + NOTES_SUFFIX)] = launch.notes
    if not ours:
        texts[folder / f"{candidate.name}{launch_commands.PLAN_SUFFIX}"] = encode_json(alone).decode()
    return texts


def _refuse_to_replace(texts: Mapping[Path, str]) -> None:
    """Raises `BadInput` if one of the files exists with another text, that of other candidates."""
    for file, text in texts.items():
        if file.exists() and (not is_regular(file) or read_bytes(file) != paired(text).encode()):
            raise BadInput(
                f"{file} exists and would be replaced: its content is not that of this command, but maybe of another.",
                "Pass another folder with --out-dir, or remove the file.",
            )


def _with_commands(
    candidate: MeasuredCandidate, framework: str, texts: Mapping[Path, str], machine: Machine
) -> MeasuredCandidate:
    """The candidate with the paths of its files and its commands."""
    commands = launch_commands.launch_commands(
        framework, candidate.job, candidate.name, str(next(iter(texts))), machine.ranks_per_host
    )
    return replace(candidate, files=tuple(map(str, texts)), commands=commands)
