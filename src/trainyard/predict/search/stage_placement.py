"""Layers of the first and the last stage of a pipeline: fewer of them if that makes the step faster.

The last stage has the head and the loss in addition to its layers, and the first one the embedding. With equal layers
all ranks wait for the last one; Llama 3's authors took a layer from either stage (arXiv:2407.21783, section 3.3.2). For
layouts that the search found, every partition of the layers with fewer on these stages that the framework can be given
is bounded, and those that could be the fastest are simulated. A case is one layout, a row of `Cases`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import numpy as np
import numpy.typing as npt

from trainyard.job import Job
from trainyard.predict.economics.training_budget import TrainingBudget
from trainyard.predict.inputs import cases
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.framework_support import Framework
from trainyard.predict.inputs.machine_model import MachineModel
from trainyard.predict.inputs.prediction_interval import interval_of
from trainyard.predict.memory import framework_memory
from trainyard.predict.pipeline import partition
from trainyard.predict.search import offload_variants
from trainyard.predict.search.layout_cost import LayoutCost, cost_case, make_cases
from trainyard.predict.search.search_space import SearchSpace
from trainyard.predict.time import step
from trainyard.predict.time.step import StepTime

LEAST_GAIN = 0.01
"""Least reduction of the step, as a share of it, for which layers are placed: less is not worth the settings."""
_MOST_LESS = 32
"""Most layers that the first or the last stage may have fewer."""
_SIMULATED_AT_ONCE = 4
"""Partitions of each layout that are simulated at once."""
_EQUAL = 1.001
"""Steps within this factor count as equal: the partition with less memory is better."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the layers of the layout number `layout`, with as many layers fewer on the first and the last
    stage (`less`). `reserved_bytes`: of the fullest rank; `times`, `row`: its simulated step, a row of several; `cases`
    has its case in the same row."""

    layout: int
    less: tuple[int, int]
    wall_s: float
    reserved_bytes: float
    cases: Cases
    times: StepTime
    row: int


def place_layers(space: SearchSpace, choices: Sequence[LayoutCost], budget: TrainingBudget) -> list[LayoutCost]:
    """The layouts `choices`, each with fewer layers on the first and the last stage if the framework can be given that
    and it reduces the step by `LEAST_GAIN` or more. `budget`: for days and dollars."""
    limits_s = np.array([choice.plan.ledger.wall_ns / 1e9 * (1 - LEAST_GAIN) for choice in choices])
    usable_bytes = offload_variants.usable_memory(space.model.machine).device
    best = find_fastest([choice.plan.job for choice in choices], space.framework, space.model, limits_s, usable_bytes)
    return [
        choice if feasible is None else _cost(space, choice, feasible, budget)
        for choice, feasible in zip(choices, best, strict=True)
    ]


def _cost(space: SearchSpace, choice: LayoutCost, feasible: Partition, budget: TrainingBudget) -> LayoutCost:
    """The cost of `choice` with the layers partitioned as in `feasible`."""
    case = feasible.cases.take(np.array([feasible.row]))
    return cost_case(
        case,
        with_less_layers(choice.plan.job, feasible.less),
        space.model,
        times=feasible.times,
        row=feasible.row,
        interval=interval_of(space.model, case),
        reserved=feasible.reserved_bytes,
        host_bytes=choice.host_bytes,
        budget=budget,
        front=choice.front,
    )


def with_less_layers(job: Job, less: tuple[int, int]) -> Job:
    """The job with as many layers fewer on the first and the last stage."""
    layout = msgspec.structs.replace(job.layout, first_stage_less_layers=less[0], last_stage_less_layers=less[1])
    return msgspec.structs.replace(job, layout=layout)


def find_fastest(
    jobs: Sequence[Job], framework: Framework, model: MachineModel, limits_s: Column, usable_bytes: float
) -> list[Partition | None]:
    """For each job the partition with the shortest step of those that reserve at most `usable_bytes`, of about equal
    ones the one with least memory; None if no step is `limits_s` of the job or shorter. `model`: the machine that costs
    are predicted for."""
    # (number of the job, layers fewer on the first stage, on the last one)
    candidates = [(at, *less) for at, job in enumerate(jobs) for less in less_layers(job, framework)]
    if not candidates:
        return [None] * len(jobs)
    layout, first_less, last_less = np.array(candidates).T
    base = make_cases(jobs, framework)
    first_less, last_less = first_less.astype(np.float64), last_less.astype(np.float64)
    bounds = step.bound_partitions(base, layout, first_less, last_less, model.hardware, model.values)
    remaining = np.flatnonzero(bounds <= limits_s[layout])
    remaining = remaining[np.argsort(bounds[remaining], kind="stable")]
    fastest_s = limits_s.copy()  # of the partitions that fit, by job
    feasible: list[Partition] = []
    while len(remaining := remaining[bounds[remaining] <= fastest_s[layout[remaining]] * _EQUAL]):
        is_next = _first_of_each(layout[remaining])
        chosen, remaining = remaining[is_next], remaining[~is_next]
        placed = replace(base.take(layout[chosen]), first_less=first_less[chosen], last_less=last_less[chosen])
        for each in _simulate(placed, layout[chosen], model):
            if each.reserved_bytes <= usable_bytes and each.wall_s <= limits_s[each.layout]:
                feasible.append(each)
                fastest_s[each.layout] = min(fastest_s[each.layout], each.wall_s)
    equal = [each for each in feasible if each.wall_s <= fastest_s[each.layout] * _EQUAL]
    return [
        min(
            (each for each in equal if each.layout == at),
            key=lambda each: (each.reserved_bytes, each.wall_s, each.less),
            default=None,
        )
        for at in range(len(jobs))
    ]


def _first_of_each(layout: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mask of the first `_SIMULATED_AT_ONCE` items with each value of `layout`."""
    is_same = layout[:, None] == np.arange(np.max(layout) + 1)
    return (np.cumsum(is_same, axis=0) * is_same).sum(axis=1) <= _SIMULATED_AT_ONCE


def _simulate(placed: Cases, layout: npt.NDArray[np.int64], model: MachineModel) -> Iterator[Partition]:
    """The step and the memory of the cases `placed`, of the layouts number `layout`."""
    times = step.step(placed, model.hardware, model.values)
    reserved_bytes = framework_memory.memory(placed).total * framework_memory.RESERVED
    columns = (layout, placed.first_less, placed.last_less, times.wall, np.broadcast_to(reserved_bytes, len(layout)))
    for row, (at, first, last, wall_s, size) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        yield Partition(at, (round(first), round(last)), wall_s, size, placed, times, row)


def less_layers(job: Job, framework: Framework) -> Iterator[tuple[int, int]]:
    """The layers fewer on the first and the last stage of each partition that the framework supports and that is not
    its own one; of several numbers for the same partition, those with the least sum."""
    if job.layout.pp == 1:
        return
    subject, stages = cases.subject(job), job.layout.pp * job.layout.interleave
    end_layers = int(partition.counted(framework.keeps.ends, subject.layers, stages))
    known = {partition.stage_sizes(subject.layers, stages, end_layers, end_layers)}
    # With as many, the first and the last stage are empty, and the others have all layers.
    most = min(_MOST_LESS, max(subject.layers // stages + 1, -(-subject.layers // max(stages - 2, 1))))
    numbers = product(range(most + 1), range(most + 1))
    for less in sorted(numbers, key=lambda less: (sum(less), less)):
        sizes = partition.stage_sizes(subject.layers, stages, *less)
        if sizes not in known and framework.places_layers(subject, stages, *less):
            known.add(sizes)
            yield less
