"""Sentences on the workload and the modes of `plan_rollout`: equal lengths, and ranks that do not generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.machine import Machine
from trainyard.predict.post_training.rollout_workload import RolloutWorkload
from trainyard.predict.search.remedies import unit_of_ranks
from trainyard.report.plans.rollout_plan import MODES, GenerationPlan, RolloutMode
from trainyard.units import counted


def rollout_notes(workload: RolloutWorkload, modes: Sequence[RolloutMode], machine: Machine) -> list[str]:
    """The sentences on `workload` and on the `modes` that have a step on `machine`."""
    return [*_length_notes(workload), *_idle_notes(modes, machine)]


def _length_notes(workload: RolloutWorkload) -> list[str]:
    """A sentence if all responses have the maximum length, although a spread was requested."""
    if not workload.length_cv or workload.max_response_tokens > workload.response_tokens:
        return []
    return [
        f"All responses have {counted(workload.response_tokens, 'token')}, since the maximum length is the mean: "
        f"--length-cv {workload.length_cv:g} has no effect."
    ]


def _idle_notes(modes: Sequence[RolloutMode], machine: Machine) -> Iterator[str]:
    """A sentence for each number of ranks that no replica uses, with the modes that have it."""
    names: dict[str, list[str]] = {}
    for mode in modes:
        if mode.generation and (note := _idle_note(mode.generation, machine)):
            names.setdefault(note, []).append(MODES[mode.name])
    for note, modes_of_note in names.items():
        yield f"{', '.join(modes_of_note).capitalize()}: {note}"


def _idle_note(generation: GenerationPlan, machine: Machine) -> str:
    """The ranks that no replica uses; empty if all are used."""
    ranks, used = generation.devices * machine.device.ranks, generation.tp * generation.replicas
    if used == ranks:
        return ""
    idle, replicas = ranks - used, generation.replicas
    return (
        f"{idle:,} of {counted(ranks, unit_of_ranks([machine]).removesuffix('s'))} for generation "
        f"{'is' if idle == 1 else 'are'} idle: {counted(replicas, 'replica')} of tp {generation.tp} "
        f"{'has' if replicas == 1 else 'have'} {used:,}."
    )
