"""Why there is no layout, with the arithmetic, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import limits
from trainyard.errors import BadJob
from trainyard.job import Model
from trainyard.machine import Machine
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.cases import REMATS
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.pipeline import schedules
from trainyard.predict.search import offload_variants
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.units import show_size


def undivided(wanted: PlannerInput, framework: Framework) -> tuple[str, str]:
    words: dict[str, Sequence[str]] = {"schedule": schedules.SCHEDULES, "remat": REMATS}
    given = ", ".join(
        f"{axis} = {words[axis][value] if axis in words else value}" for axis, value in wanted.fixed.items()
    )
    model, parts = wanted.model, layout_space.shared(wanted.model)
    listed = ", ".join(f"{size:,} {name}" for name, size in parts.items())
    says = (
        f"no layout of {wanted.devices:,} devices divides {listed}, "
        f"{model.layers} layers and {wanted.samples:,} samples a step"
    )
    said = says + (f" with {given}." if given else ".")
    for axis, value in wanted.fixed.items():
        if axis == "schedule" and schedules.SCHEDULES[value] not in framework.offers.schedules:
            listed = " and ".join(framework.offers.schedules)
            return (
                f"schedule = {schedules.SCHEDULES[value]} is not planned for with {framework.means}.",
                f"Name {listed}.",
            )
        if axis == "tp" and (part := next((part for part in parts.items() if part[1] % value), None)):
            return said, f"{part[1]} {part[0]} % tp {value} = {part[1] % value}."
        if axis == "tp" and wanted.devices % value:
            return said, f"{wanted.devices:,} devices % tp {value} = {wanted.devices % value}."
        if axis in ("pp", "cp", "ep") and value > 1 and not isinstance(model, Model):
            return said, f"{axis} {value}: of a model of pictures, samples are divided, and matrices by tp."
        if axis == "pp" and wanted.devices % value:
            return said, f"{wanted.devices:,} devices % pp {value} = {wanted.devices % value}."
        if axis == "pp" and value > model.layers:
            return said, f"pp {value} is more than {model.layers} layers."
    for axis in wanted.fixed:
        rest = {one: value for one, value in wanted.fixed.items() if one != axis}
        if others := sum(len(lot) for lot in layout_space.lots(wanted._replace(fixed=rest), framework.offers)):
            return said, f"Without --fix {axis} there are {others:,}."
    return said, "Change the batch or the number of devices: both are best multiples of the same powers of two."


def too_large(wanted: PlannerInput, sizes: LayoutSizes, searched: int, machine: Machine) -> str:
    """`sizes`: of layouts that do not fit, with the twins of those that were `searched`."""
    room = offload_variants.room(machine)
    over = np.maximum(sizes.need - room.device, 0.0)
    # Of those that a device would hold, the one that waits with least in its host's memory is nearest to fitting.
    best = int(np.lexsort((sizes.waiting, over))[0])
    job, least = layout_space.job_of(wanted, sizes.every.row(best)), float(sizes.need[best])
    says = f"{wanted.model.name} fits on {wanted.devices:,} devices in none of {searched:,} layouts: the "
    says += f"smallest ({job.layout}, remat {job.recipe.remat}{', offloaded' * job.recipe.offload}) needs "
    says += f"{show_size(least)} of each, and {show_size(room.device)} can be used"
    if least > room.device:
        return f"{says}: {show_size(least - room.device)} too much."
    ranks, wait = min(wanted.devices, machine.ranks_per_node), float(sizes.waiting[best])
    most = room.host * ranks
    return (
        f"{says}; but {show_size(wait)} * {ranks} ranks = {show_size(wait * ranks)} would wait in a host's memory, of "
        f"which they have {show_size(most)}: {show_size(wait * ranks - most)} too much."
    )


def smallest(wanted: PlannerInput, framework: Framework, machine: Machine) -> str:
    """How many of these devices would do."""
    for times in (2, 4, 8, 16, 32, 64):
        more = wanted._replace(devices=wanted.devices * times)
        if more.devices > limits.DEVICES.most:
            break
        try:
            bigger = framework.layouts(more)
        except BadJob:  # more layouts than can be searched
            break
        if len(bigger) and offload_variants.any_fits(more, bigger, framework, machine):
            return f"{more.devices:,} devices would do."
    return "Use devices of more memory, or fewer samples a step."
