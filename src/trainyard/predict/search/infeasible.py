"""Explains why there is no layout, with the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from math import prod
from typing import Literal

import numpy as np

from trainyard.errors import BadJob
from trainyard.machine import Machine
from trainyard.model import Model
from trainyard.predict.inputs import layout_space
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.pipeline import schedules
from trainyard.predict.search import offload_variants
from trainyard.predict.search.offload_variants import LayoutSizes
from trainyard.predict.search.remedies import unit_of_ranks
from trainyard.units import counted, show_gigabytes

_RANK_AXES = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
"""Axes whose degrees have the number of ranks as their product."""
_SAMPLE_AXES = ("dp_shard", "dp_replicate", "micro_batch_size")
"""Axes whose product divides the samples of a step."""
_STAGES_OF_V = 2
"""Stages per rank of the schedules `V_SHAPED`."""
_MOST_PAIRS = 2
"""Pairs of fixed axes that exclude each other in a message."""
_ZERO_OF_WEIGHTS = 3
"""The ZeRO stage that shards weights."""
_USUAL_DTYPE = "bfloat16"
"""The compute dtype that messages do not mention, since every framework supports it in all layouts."""


def explain_no_layout(
    wanted: PlannerInput, framework: Framework, unit: Literal["devices", "ranks"], *, some_divide: bool
) -> str:
    """The message if `framework` supports no layout of `wanted`, with the remainder of each fixed axis that does not
    divide. `some_divide`: some layouts divide ranks, model and batch evenly; `unit`: as from `unit_of_ranks`."""
    fixed = _describe_fixed(wanted.fixed)
    causes = "; ".join(_causes(wanted, framework, unit) or (_unsupported(wanted, framework) if some_divide else []))
    if some_divide:
        in_dtype = f" in {wanted.dtype}" * (wanted.dtype != _USUAL_DTYPE)
        reason = (
            f"{framework.display_name} supports none of the layouts that divide evenly{fixed and f' with {fixed}'}"
            f"{in_dtype}"
        )
    elif fixed:
        reason = f"no layout of {counted(wanted.devices, unit[:-1])} has {fixed}"
    else:
        sizes = ", ".join(f"{size:,} {name}" for name, size in layout_space.tp_divided_sizes(wanted.model).items())
        reason = (
            f"no layout of {counted(wanted.devices, unit[:-1])} divides {sizes}, "
            f"{counted(wanted.model.layers, 'layer')} and {counted(wanted.samples, 'sample')} a step"
        )
    return f"{reason}{causes and f': {causes}'}."


def explain_unsharded(wanted: PlannerInput, framework: Framework) -> str:
    """The message if a ZeRO stage is fixed, but no layout has data-parallel ranks to shard over with it."""
    others = {axis: value for axis, value in wanted.fixed.items() if axis != "zero"}
    described = _describe_fixed(others)
    try:
        axes = framework.layouts(wanted._replace(fixed=others)).columns
        stages = np.unique(axes["zero"][axes["dp_shard"] * axes["cp"] > 1]).tolist()
    except BadJob:  # more than can be searched
        stages = []
    supported = f", only with {' or '.join(f'ZeRO-{stage}' for stage in stages)}" if stages else ""
    return (
        f"{framework.display_name}: no layout{described and f' with {described}'} is sharded with "
        f"ZeRO-{wanted.fixed['zero']}{supported}."
    )


def _describe_fixed(fixed: Mapping[str, int]) -> str:
    """Fixed axes with their values: `tp = 2 and schedule = zbv`."""
    return " and ".join(f"{axis} = {value}" for axis, value in layout_space.fixed_in_words(fixed).items())


def _causes(wanted: PlannerInput, framework: Framework, unit: str) -> list[str]:
    """Reasons for which fixed axes have no layout: the remainder of each axis; without one, those of several axes
    together."""
    causes = [cause for axis, value in wanted.fixed.items() if (cause := _cause(wanted, framework, unit, axis, value))]
    return causes or [*_contradictions(wanted.fixed), *_joint_causes(wanted, framework, unit)]


def _contradictions(fixed: Mapping[str, int]) -> Iterator[str]:
    """Reasons for which no framework has two fixed axes together."""
    schedule = schedules.SCHEDULES[fixed["schedule"]] if "schedule" in fixed else ""
    interleave = fixed.get("interleave")
    if interleave and schedule in schedules.ONE_STAGE and interleave > 1:
        yield f"{schedule} has one stage per rank (interleave 1)"
    if interleave and schedule in schedules.V_SHAPED and interleave != _STAGES_OF_V:
        yield f"{schedule} has {_STAGES_OF_V} stages per rank (interleave {_STAGES_OF_V})"
    if interleave == 1 and schedule in ("interleaved", "looped_bfs"):
        yield f"{schedule} has several stages per rank (interleave above 1)"
    if fixed.get("zero") == _ZERO_OF_WEIGHTS and fixed.get("pp", 1) > 1:
        yield "with a pipeline (pp above 1), only ZeRO-1 and ZeRO-2 are planned"
    if schedule in schedules.SPLIT and fixed.get("activation_checkpoint"):
        yield f"{schedule} splits the backward pass, which is planned without activation checkpointing"


def _unsupported(wanted: PlannerInput, framework: Framework) -> Iterator[str]:
    """Each fixed axis whose value the framework supports in no layout, or else each pair of them, with the values that
    it supports."""
    try:
        supported = framework.layouts(wanted._replace(fixed={}))
    except BadJob:  # more than can be searched
        return
    if not len(supported):
        return
    excluded = [axis for axis in wanted.fixed if wanted.fixed[axis] not in supported.columns[axis]]
    for axis in excluded:
        yield f"{axis} is {_values_in_words(axis, supported)} in all layouts that it supports"
    if not excluded:
        yield from islice(_unsupported_pairs(wanted, framework), _MOST_PAIRS)


def _unsupported_pairs(wanted: PlannerInput, framework: Framework) -> Iterator[str]:
    """Each pair of fixed axes whose values the framework supports in no layout together, with the values that it
    supports of the second one."""
    for first, second in combinations(sorted(wanted.fixed, key="zero".__eq__), 2):  # a ZeRO stage depends on the others
        supported = framework.layouts(wanted._replace(fixed={first: wanted.fixed[first]}))
        if wanted.fixed[second] not in supported.columns[second]:
            values = _values_in_words(second, supported)
            described = _describe_fixed({first: wanted.fixed[first]})
            yield f"with {described}, {second} is {values} in all layouts that it supports"


def _values_in_words(axis: str, layouts: LayoutSpace) -> str:
    """The values of an axis in layouts: `1 or 2`."""
    values = np.unique(layouts.columns[axis]).tolist()
    return " or ".join(str(layout_space.fixed_in_words({axis: int(value)})[axis]) for value in values)


def _joint_causes(wanted: PlannerInput, framework: Framework, unit: str) -> Iterator[str]:
    """The remainders of several fixed axes together, and the restriction of the framework."""
    for number, counted_unit, axes in (
        (wanted.devices, unit, _RANK_AXES),
        (wanted.samples, "samples", _SAMPLE_AXES),
    ):
        degrees = {axis: wanted.fixed[axis] for axis in axes if axis in wanted.fixed}
        if number % (product := prod(degrees.values())):
            factors = " x ".join(f"{axis} {value}" for axis, value in degrees.items())
            yield f"{number:,} {counted_unit} % ({factors}) = {number % product}"
    ranks = wanted.fixed.get("tp", 1) * wanted.fixed.get("cp", 1)
    if isinstance(wanted.model, Model) and framework.keeps.splits_activations and wanted.seq_len % ranks:
        yield (
            f"seq_len {wanted.seq_len:,} % (tp x cp {ranks}) = {wanted.seq_len % ranks}, but it divides a sequence "
            "evenly over these ranks"
        )
    if framework.unsupported:
        yield f"it {framework.unsupported}"


def _cause(wanted: PlannerInput, framework: Framework, unit: str, axis: str, value: int) -> str:
    """The reason that a fixed axis cannot have its value, with the remainder of a division; empty if it can."""
    model, divided_sizes = wanted.model, layout_space.tp_divided_sizes(wanted.model)
    if axis == "schedule" and schedules.SCHEDULES[value] not in framework.offers.schedules:
        return f"the schedules of {framework.display_name} are {', '.join(framework.offers.schedules)}"
    if axis == "schedule" and wanted.fixed.get("pp") == 1:
        return "a schedule needs a pipeline, pp above 1"
    if axis == "interleave" and value > 1 and wanted.fixed.get("pp") == 1:
        return "several stages per rank (interleave) need a pipeline, pp above 1"
    if axis == "tp" and (part := next((part for part in divided_sizes.items() if part[1] % value), None)):
        return f"{part[1]} {part[0]} % tp {value} = {part[1] % value}"
    if axis in ("pp", "cp", "ep") and value > 1 and not isinstance(model, Model):
        return f"{axis} {value}: vision models only support data parallelism and tp"
    if axis == "ep" and isinstance(model, Model) and value > 1 and (not model.experts or model.experts % value):
        experts = f"{model.experts} experts % ep {value} = {model.experts % value}" if model.experts else "no experts"
        return f"{model.name}: {experts}"
    if axis == "cp" and isinstance(model, Model) and value > 1 and wanted.seq_len % (2 * value):
        return (
            f"seq_len {wanted.seq_len:,} % (2 x cp {value}) = {wanted.seq_len % (2 * value)}, but each rank needs an "
            "early and a late part of the sequence"
        )
    if axis in _RANK_AXES and wanted.devices % value:
        return f"{wanted.devices:,} {unit} % {axis} {value} = {wanted.devices % value}"
    if axis in _SAMPLE_AXES and wanted.samples % value:
        return f"{wanted.samples:,} samples % {axis} {value} = {wanted.samples % value}"
    if axis == "pp" and value > model.layers:
        return f"pp {value} is more than {counted(model.layers, 'layer')}"
    return ""


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
