"""Explains why there is no layout, with the arithmetic and a next step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.job import Model
from trainyard.machine import Machine
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.pipeline import schedules
from trainyard.predict.search import offload_variants
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.units import show_size


def undivided(wanted: PlannerInput, framework: Framework) -> tuple[str, str]:
    names: dict[str, Sequence[str]] = {"schedule": schedules.SCHEDULES, "activation_checkpoint": ACTIVATION_CHECKPOINTS}
    fixed = ", ".join(
        f"{axis} = {names[axis][value] if axis in names else value}" for axis, value in wanted.fixed.items()
    )
    model, parts = wanted.model, layout_space.shared(wanted.model)
    listed = ", ".join(f"{size:,} {name}" for name, size in parts.items())
    summary = (
        f"no layout of {wanted.devices:,} devices divides {listed}, "
        f"{model.layers} layers and {wanted.samples:,} samples a step"
    )
    message = summary + (f" with {fixed}." if fixed else ".")
    for axis, value in wanted.fixed.items():
        if axis == "schedule" and schedules.SCHEDULES[value] not in framework.offers.schedules:
            listed = " and ".join(framework.offers.schedules)
            return (
                f"schedule = {schedules.SCHEDULES[value]} is not supported with {framework.means}.",
                f"Use {listed}.",
            )
        if axis == "tp" and (part := next((part for part in parts.items() if part[1] % value), None)):
            return message, f"{part[1]} {part[0]} % tp {value} = {part[1] % value}."
        if axis == "tp" and wanted.devices % value:
            return message, f"{wanted.devices:,} devices % tp {value} = {wanted.devices % value}."
        if axis in ("pp", "cp", "ep") and value > 1 and not isinstance(model, Model):
            return message, f"{axis} {value}: vision models only support data parallelism and tp."
        if axis == "pp" and wanted.devices % value:
            return message, f"{wanted.devices:,} devices % pp {value} = {wanted.devices % value}."
        if axis == "pp" and value > model.layers:
            return message, f"pp {value} is more than {model.layers} layers."
    for axis in wanted.fixed:
        rest = {name: value for name, value in wanted.fixed.items() if name != axis}
        if others := sum(len(batch) for batch in layout_space.lots(wanted._replace(fixed=rest), framework.offers)):
            return message, f"Without --fix {axis} there are {others:,} layouts."
    return message, "Change the batch or the device count; multiples of the same powers of two work best."


def too_large(wanted: PlannerInput, sizes: LayoutSizes, searched: int, machine: Machine) -> str:
    """The message for layouts that do not fit. `sizes`: of all layouts, with and without offloading; `searched`: the
    number of layouts without."""
    usable = offload_variants.usable_memory(machine)
    excess = np.maximum(sizes.need - usable.device, 0.0)
    # Among layouts that fit on a device, the one with the least offloaded bytes is the closest to fitting.
    closest = int(np.lexsort((sizes.waiting, excess))[0])
    job, least = layout_space.job_of(wanted, sizes.layouts.row(closest)), float(sizes.need[closest])
    summary = f"{wanted.model.name} fits on {wanted.devices:,} devices in none of {searched:,} layouts: the "
    kept = f"activation checkpointing {job.recipe.activation_checkpoint}{', offloaded' * job.recipe.offload}"
    summary += f"smallest ({job.layout}, {kept}) needs "
    summary += f"{show_size(least)} of each, and {show_size(usable.device)} can be used"
    if least > usable.device:
        return f"{summary}: {show_size(least - usable.device)} too much."
    ranks, waiting = min(wanted.devices, machine.ranks_per_node), float(sizes.waiting[closest])
    host_memory = usable.host * ranks
    return (
        f"{summary}; but {show_size(waiting)} * {ranks} ranks = {show_size(waiting * ranks)} would be offloaded to the "
        f"host, of which {show_size(host_memory)} can be used: {show_size(waiting * ranks - host_memory)} too much."
    )


def smallest(wanted: PlannerInput, framework: Framework, machine: Machine) -> str:
    """The next step: a number of these devices that would be enough."""
    for factor in (2, 4, 8, 16, 32, 64):
        larger = wanted._replace(devices=wanted.devices * factor)
        if larger.devices > limits.DEVICES.most:
            break
        try:
            layouts = framework.layouts(larger)
        except BadJob:  # more layouts than can be searched
            break
        if len(layouts) and offload_variants.any_fits(larger, layouts, framework, machine):
            return f"{larger.devices:,} devices would be enough."
    return "Use devices with more memory, or fewer samples per step."
