"""A lower bound of each layout's step from the work in its layers, which costs less than its memory or its bound.

The time of a layer without data parallelism is the same in all layouts of a search that agree in a few axes, so that it
is computed once for these. Activation checkpointing is left out: layouts that differ in it only have the same bound.
A column has a value per layout, of shape [layout].
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainyard.predict.inputs import cases, layout_space
from trainyard.predict.inputs.cases import Column
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.layout_space import LayoutSpace, PlannerInput
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.pipeline import partition, schedules, step_bounds

_LAYER_AXES = ("tp", "cp", "ep", "micro_batch_size")
"""Axes on which the time of a layer depends, without recomputation and the communication of data parallelism."""


def step_floors(wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, model: MachineModel) -> Column:
    """Lower bound in seconds of each layout's step: the longer of the mean over ranks, and of the last rank of a
    pipeline, which works for each micro-batch after the first one has passed the ranks before it."""
    is_first = layout_space.starts_group(layouts)
    groups = layouts.keep(is_first)
    layers_s, least_s = _time_layers(wanted, groups, framework, model)
    axes, layers = groups.columns, wanted.model.layers
    micro_batches = wanted.samples / (axes["dp_replicate"] * axes["dp_shard"] * axes["micro_batch_size"])
    stages = cases.column(axes["pp"] * axes["interleave"])
    end_layers = partition.counted(framework.keeps.ends, layers, stages)
    least_layers = partition.divided(layers, stages, end_layers, end_layers).each  # of a stage between the ends
    passed_layers = (axes["pp"] - 1) * least_layers - end_layers
    last_rank_s = least_s * (passed_layers + micro_batches * (axes["interleave"] * least_layers - end_layers))
    # A schedule that splits the backward pass may end on the last rank.
    last_rank_s = np.where(schedules.among(axes["schedule"].astype(np.float64), schedules.SPLIT), 0.0, last_rank_s)
    floors = np.maximum(micro_batches * layers_s / axes["pp"], last_rank_s)
    return np.repeat(floors, np.diff(np.append(np.flatnonzero(is_first), len(layouts))))


def _time_layers(
    wanted: PlannerInput, layouts: LayoutSpace, framework: Framework, model: MachineModel
) -> tuple[Column, Column]:
    """(all layers, one layer of the fastest kind): at least the seconds of a micro-batch's forward and backward pass
    through these."""
    keys = np.zeros(len(layouts), np.int64)
    for axis in _LAYER_AXES:
        values = layouts.columns[axis]
        keys = keys * (int(np.max(values)) + 1) + values
    _, rows, row_of = np.unique(keys, return_index=True, return_inverse=True)
    different = layout_space.as_cases(wanted, layouts.keep(rows), framework.keeps)
    different = replace(different, is_sharded=cases.column(0))
    kinds = step_bounds.least_layer_seconds(different, model.hardware, model.values)
    layers_s = sum((count * seconds for count, seconds in kinds), np.zeros(1))
    least_s = np.minimum.reduce([np.broadcast_to(seconds, len(rows)) for _, seconds in kinds])
    return np.broadcast_to(layers_s, len(rows))[row_of], least_s[row_of]
