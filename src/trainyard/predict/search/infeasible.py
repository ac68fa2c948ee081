"""Explains why there is no layout, with the arithmetic and a next step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Literal

import numpy as np

from trainyard.errors import BadJob
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs import cluster_size, layout_space
from trainyard.predict.inputs.cases import ACTIVATION_CHECKPOINTS
from trainyard.predict.inputs.framework_support import FRAMEWORKS, Framework
from trainyard.predict.inputs.layout_space import PlannerInput
from trainyard.predict.pipeline import schedules
from trainyard.predict.search import offload_variants
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.units import counted, show_gigabytes

CLUSTER_FACTORS = (2, 4, 8, 16, 32, 64, 128, 256)
"""Multiples of a cluster that are tried, if nothing fits on it, until one is large enough."""
_LEAST_SEQ_LEN = 512
"""The shortest sequences that are tried, if nothing fits."""


def unit_of_ranks(machines: Iterable[Machine]) -> Literal["devices", "ranks"]:
    """The unit of `PlannerInput.devices` in messages: `devices` if each has one rank, else `ranks`."""
    return "devices" if all(machine.device.ranks == 1 for machine in machines) else "ranks"


_RANK_AXES = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
"""Axes whose degrees have the number of ranks as their product."""


def explain_indivisible(
    wanted: PlannerInput, framework: Framework, unit: Literal["devices", "ranks"]
) -> tuple[str, str]:
    """(message, next step) if no layout divides the ranks, model and batch of `wanted` evenly: the first fixed axis
    that does not divide, with its remainder, or the axis to leave free. `unit`: as from `unit_of_ranks`."""
    words_of_axis: dict[str, Sequence[str]] = {  # axes whose value is an index into these words
        "schedule": schedules.SCHEDULES,
        "activation_checkpoint": ACTIVATION_CHECKPOINTS,
    }
    fixed = ", ".join(
        f"{axis} = {words_of_axis[axis][value] if axis in words_of_axis else value}"
        for axis, value in wanted.fixed.items()
    )
    model, divided_sizes = wanted.model, layout_space.tp_divided_sizes(wanted.model)
    sizes = ", ".join(f"{size:,} {name}" for name, size in divided_sizes.items())
    subject = (
        f"no layout of {counted(wanted.devices, unit[:-1])} divides {sizes}, "
        f"{counted(model.layers, 'layer')} and {counted(wanted.samples, 'sample')} a step"
    )
    message = subject + (f" with {fixed}." if fixed else ".")
    for axis, value in wanted.fixed.items():
        if axis == "schedule" and schedules.SCHEDULES[value] not in framework.offers.schedules:
            supported = " and ".join(framework.offers.schedules)
            return (
                f"schedule = {schedules.SCHEDULES[value]} is not supported with {framework.display_name}.",
                f"Use {supported}.",
            )
        if axis == "tp" and (part := next((part for part in divided_sizes.items() if part[1] % value), None)):
            return message, f"{part[1]} {part[0]} % tp {value} = {part[1] % value}."
        if axis == "tp" and wanted.devices % value:
            return message, f"{wanted.devices:,} {unit} % tp {value} = {wanted.devices % value}."
        if axis in ("pp", "cp", "ep") and value > 1 and not isinstance(model, Model):
            return message, f"{axis} {value}: vision models only support data parallelism and tp."
        if axis == "ep" and isinstance(model, Model) and value > 1 and (not model.experts or model.experts % value):
            experts = (
                f"{model.experts} experts % ep {value} = {model.experts % value}" if model.experts else "no experts"
            )
            return message, f"{model.name}: {experts}."
        if axis == "cp" and isinstance(model, Model) and value > 1 and wanted.seq_len % (2 * value):
            return message, (
                f"seq_len {wanted.seq_len:,} % (2 x cp {value}) = {wanted.seq_len % (2 * value)}: each rank needs an "
                "early and a late part of the sequence."
            )
        if axis in ("cp", "dp_replicate", "dp_shard") and wanted.devices % value:
            return message, f"{wanted.devices:,} {unit} % {axis} {value} = {wanted.devices % value}."
        if axis in ("dp_replicate", "dp_shard", "micro_batch_size") and wanted.samples % value:
            return message, f"{wanted.samples:,} samples % {axis} {value} = {wanted.samples % value}."
        if axis == "interleave" and value > 1 and wanted.fixed.get("pp") == 1:
            return message, "Several stages per rank (interleave) need a pipeline: pp above 1."
        if axis == "pp" and wanted.devices % value:
            return message, f"{wanted.devices:,} {unit} % pp {value} = {wanted.devices % value}."
        if axis == "pp" and value > model.layers:
            return message, f"pp {value} is more than {counted(model.layers, 'layer')}."
    degrees = {axis: wanted.fixed[axis] for axis in _RANK_AXES if axis in wanted.fixed}
    if wanted.devices % (ranks := prod(degrees.values())):
        product = " x ".join(f"{axis} {value}" for axis, value in degrees.items())
        return message, f"{wanted.devices:,} {unit} % ({product}) = {wanted.devices % ranks}."
    for axis in wanted.fixed:
        other_axes = {name: value for name, value in wanted.fixed.items() if name != axis}
        if layout_count := len(framework.layouts(wanted._replace(fixed=other_axes))):
            are = "is" if layout_count == 1 else "are"
            return message, f"Without --fix {axis} there {are} {counted(layout_count, 'layout')}."
    if wanted.samples % wanted.devices:
        larger_batch = -(-wanted.samples // wanted.devices) * wanted.devices
        return (
            message,
            f"Use --batch {larger_batch}, a multiple of the {wanted.devices:,} {unit}, or another --devices.",
        )
    return message, "Change the batch or the device count; multiples of the same powers of two work best."


def explain_unsupported(wanted: PlannerInput, framework: Framework) -> tuple[str, str]:
    """(message, next step) if layouts divide the model and the batch evenly, but the framework supports none of
    them."""
    ranks = wanted.fixed.get("tp", 1) * wanted.fixed.get("cp", 1)
    if isinstance(wanted.model, Model) and framework.keeps.splits_activations and wanted.seq_len % ranks:
        return (
            f"seq_len {wanted.seq_len:,} % (tp x cp {ranks}) = {wanted.seq_len % ranks}, but {framework.display_name} "
            "divides a sequence evenly over these ranks.",
            f"Use --seq-len {-(-wanted.seq_len // (2 * ranks)) * 2 * ranks}, or leave out --fix tp and cp.",
        )
    if framework.unsupported:
        return f"{framework.display_name} {framework.unsupported}.", "Leave out a fixed axis, or change the batch."
    return (
        f"{framework.display_name} supports none of the layouts that divide evenly.",
        "Leave out a fixed axis, or choose another framework with --for.",
    )


def explain_too_large(wanted: PlannerInput, sizes: LayoutSizes, searched: int, machine: Machine) -> str:
    """The message for layouts that do not fit: the layout that is closest to fitting, and the bytes that each rank
    lacks on its device, or all ranks of a node on the host. `sizes`: of all layouts, with and without offloading;
    `searched`: the number of layouts without."""
    usable_bytes = offload_variants.usable_memory(machine)
    excess_bytes = np.maximum(sizes.device_bytes - usable_bytes.device, 0.0)
    # Among layouts that fit on a device, the one with the least offloaded bytes is the closest to fitting.
    closest_index = int(np.lexsort((sizes.host_bytes, excess_bytes))[0])
    job = layout_space.job_of(wanted, sizes.layouts.row(closest_index))
    least_bytes = float(sizes.device_bytes[closest_index])
    unit = unit_of_ranks([machine])
    devices, tried = counted(wanted.devices, unit[:-1]), counted(searched, "layout")
    summary = f"{wanted.model.name} fits on {devices} in none of {tried}: the "
    activation_memory = (
        f"activation checkpointing {job.recipe.activation_checkpoint}{', offloaded' * job.recipe.offload}"
    )
    summary += f"smallest ({job.layout}, {activation_memory}) needs "
    summary += f"{show_gigabytes(least_bytes)} of each, and {show_gigabytes(usable_bytes.device)} can be used"
    if least_bytes > usable_bytes.device:
        summary += f": {show_gigabytes(least_bytes - usable_bytes.device)} too much"
    ranks, host_bytes = min(wanted.devices, machine.ranks_per_node), float(sizes.host_bytes[closest_index])
    host_memory = usable_bytes.host * ranks
    if host_bytes * ranks <= host_memory:
        return f"{summary}."
    offloaded = f"{show_gigabytes(host_bytes)} * {counted(ranks, 'rank')} = {show_gigabytes(host_bytes * ranks)}"
    return (
        f"{summary}; {offloaded} would be offloaded to the host, of which {show_gigabytes(host_memory)} can be used: "
        f"{show_gigabytes(host_bytes * ranks - host_memory)} too much."
    )


def suggest_device_count(wanted: PlannerInput, framework: Framework, machine: Machine) -> str:
    """The next step: another framework with which a layout fits, and the smallest multiple of the devices in
    `CLUSTER_FACTORS` on which one fits; other devices if there is none."""
    for name, other in FRAMEWORKS.items():
        is_usable = wanted.dtype in other.dtypes and not other.refuses(wanted.model)
        if is_usable and other.display_name != framework.display_name and _any_fits(wanted, other, machine):
            return f"A layout of {other.display_name} fits: --for {name}."
    for factor in CLUSTER_FACTORS:
        larger = wanted._replace(devices=wanted.devices * factor)
        if larger.devices > cluster_size.max_ranks(machine):
            break
        if _any_fits(larger, framework, machine):
            return f"{larger.devices // machine.device.ranks:,} devices would be enough."
    shorter = wanted._replace(seq_len=wanted.seq_len // 2)
    while shorter.seq_len >= _LEAST_SEQ_LEN and isinstance(wanted.model, Model):
        if _any_fits(shorter, framework, machine):
            return f"Sequences of {shorter.seq_len:,} tokens fit; longer ones need devices with more memory."
        shorter = shorter._replace(seq_len=shorter.seq_len // 2)
    return "Use devices with more memory."


def _any_fits(wanted: PlannerInput, framework: Framework, machine: Machine) -> bool:
    """Whether a layout fits; not if there are more than can be searched."""
    try:
        layouts = framework.layouts(wanted)
    except BadJob:
        return False
    return bool(len(layouts)) and offload_variants.any_fits(wanted, layouts, framework, machine)
