"""Numbers of devices that few layouts divide, and what is faster than these: fewer devices, or another batch."""

from __future__ import annotations

from collections.abc import Callable

from trainyard import limits
from trainyard.errors import BadInput
from trainyard.job import Job
from trainyard.machine import Machine
from trainyard.predict.economics.training_budget import NO_BUDGET
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.search.remedies import next_batch, unit_of_ranks
from trainyard.predict.search.search import fastest
from trainyard.units import counted

_LEAST_GAIN = 0.02
"""Least gain in speed that is worth a sentence."""


def usual_count(devices: int, per_node: int) -> int:
    """The most devices, at most `devices`, that are whole nodes, or a power of two in a node."""
    return devices // per_node * per_node if devices >= per_node else 1 << (devices.bit_length() - 1)


def describe_faster(
    wanted: PlannerInput, machine: Machine, framework: Framework, refuses: Callable[[Job], None], step_s: float
) -> list[str]:
    """Sentences on the usual number of devices below that of `wanted`, and on the next batch that its devices divide,
    if they are faster; none for a usual number. `step_s`: the fastest step of `wanted`; `refuses`: raises `BadJob` for
    a job that cannot be run."""

    def step_seconds(changed: PlannerInput) -> float:
        """The fastest step of a changed request; infinite if it has no layout."""
        try:
            return fastest(changed, machine, framework, NO_BUDGET, refuses).plan.ledger.wall_ns / 1e9
        except BadInput:
            return float("inf")

    devices, ranks_per_device = wanted.devices // machine.device.ranks, machine.device.ranks
    fewer, batch = usual_count(devices, machine.per_node), next_batch(wanted)
    if fewer == devices:
        return []
    sentences: list[str] = []
    fewer_s = step_seconds(wanted._replace(devices=fewer * ranks_per_device))
    if fewer_s * (1 + _LEAST_GAIN) < step_s:
        verb = "are" if fewer > 1 else "is"
        sentences.append(
            f"{counted(fewer, 'device')} {verb} faster than {devices:,}, which few layouts divide: {fewer_s:,.4g} s a "
            f"step, in place of {step_s:,.4g} s."
        )
    if batch != wanted.samples and batch <= limits.SAMPLES.most:
        gain = batch / step_seconds(wanted._replace(samples=batch)) / (wanted.samples / step_s) - 1
        if gain > _LEAST_GAIN:
            sentences.append(
                f"--batch {batch}, a multiple of the {wanted.devices:,} {unit_of_ranks([machine])}, raises the "
                f"throughput by {100 * gain:.0f} %."
            )
    return sentences
