"""Simulation of a pipeline's step, operation by operation: its seconds, and how each rank spends them.

A rank runs its operations in the order of its schedule, each as soon as its input has arrived: from the previous stage
in the forward pass, from the next stage in the backward pass. All ranks of many pipelines advance in lockstep, at most
one operation per turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput
from trainyard.predict.inputs.cases import Column
from trainyard.predict.pipeline import schedules
from trainyard.predict.pipeline.schedules import FORWARD, INPUTS, WEIGHTS, Numbers

_NOTHING, _NEVER = 0, 1
"""Indices of a result that is available from the beginning, and of one that never is."""
_TURNS_PER_CHECK = 64
"""Turns between checks whether all ranks are done."""
_BATCH_OPERATIONS = 1 << 18
"""Most operations, over all pipelines, that are simulated at once; bounds the memory."""


SIMULATED_MICRO_BATCHES = 1 << 9
"""A step with more than about four times as many micro-batches is extrapolated from simulations of this many and of
twice as many: its ranks are in the steady state long before, and the time is within 1 in 1,000."""


class PipelineTimes(NamedTuple):
    """`forward`, `inputs`, `weights`: seconds of a micro-batch on each stage, in the order of the model: forward pass,
    gradients of inputs, gradients of weights. `hop`: seconds of a transfer from one rank to another, or from each stage
    to the next one; `waits`: the receiving rank does nothing else meanwhile."""

    schedule: str
    ranks: int
    micro_batches: int
    forward: Column
    inputs: Column
    weights: Column
    hop: float | Column
    waits: bool = False


class SimulatedPipeline(NamedTuple):
    """`wall`, and seconds of each rank that sum to it. `busy`: at work; `exchange`: exposed transfers; `warmup`,
    `steady`, `drain`: idle before the first operation, between operations, and after the last. Not in the sum:
    `moved`, seconds of all transfers to the rank; and `kept`, its peak number of in-flight micro-batches, counted
    separately for each of its stages."""

    wall: float
    busy: Column
    moved: Column
    exchange: Column
    warmup: Column
    steady: Column
    drain: Column
    kept: Numbers


class _Plan(NamedTuple):
    """The operations of all ranks, grouped by rank. `cell`: index into the table of seconds (kind x stage); `source`:
    the operation whose result it needs, or less than 0; `crosses`: the stage after which that result crosses ranks, or
    less than 0. `begin`: offsets of the ranks, and the total."""

    cell: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    crosses: npt.NDArray[np.int32]
    begin: Numbers
    kept: Numbers


@lru_cache(maxsize=128)
def _plan(schedule: str, ranks: int, interleave: int, count: int) -> _Plan:
    begin, kind, stage, micro, held = schedules.order(schedule, ranks, interleave, count)
    rank = np.repeat(np.arange(ranks), np.diff(begin))
    stages, places = ranks * interleave, np.arange(len(kind))
    results = np.full((2, stages + 2, count), -1)  # operation: [0 forward, 1 backward][stage + 1][micro]
    forward, late = kind == FORWARD, kind == WEIGHTS
    back = ~forward & ~late
    for direction, mask in enumerate((forward, back)):
        results[direction, stage[mask] + 1, micro[mask]] = places[mask] + held[mask]
    source = np.where(forward, results[0, stage, micro], np.where(back, results[1, stage + 2, micro], -1))
    crosses = np.where((source >= 0) & (rank[source] != rank), np.where(forward, stage - 1, stage), -1)
    total = np.cumsum(np.where(forward, 1, np.where(kind == INPUTS, 0, -1)))  # each rank ends with 0
    # int32, because the cache holds many plans
    cell, source, crosses = (numbers.astype(np.int32) for numbers in (kind * stages + stage, source, crosses))
    return _Plan(cell, source, crosses, begin, np.maximum.reduceat(total, begin[:-1]))


def peak_in_flight(schedule: str, ranks: int, interleave: int, count: int) -> Numbers:
    """Peak in-flight micro-batches of each rank, counted separately for each of its stages."""
    return _plan(schedule, ranks, interleave, count).kept


class _State(NamedTuple):
    """One entry per operation, grouped by rank, each group followed by an operation that never starts. `source`: index
    of the operation it waits for; `delay`: seconds until that result has arrived; `seconds`: duration; `ends`: time at
    which it ends."""

    source: Numbers
    delay: Column
    seconds: Column
    ends: Column


def simulate(pipelines: Sequence[PipelineTimes]) -> list[SimulatedPipeline]:
    """Simulate each pipeline's step. Raises `BadInput` if a schedule does not support the number of micro-batches, or
    deadlocks."""
    counts = [_sample_counts(pipeline) for pipeline in pipelines]
    if any(counts):
        return _simulate_samples(pipelines, counts)
    results: list[SimulatedPipeline] = []
    plans = [
        _plan(pipeline.schedule, pipeline.ranks, len(pipeline.forward) // pipeline.ranks, pipeline.micro_batches)
        for pipeline in pipelines
    ]
    sizes = [len(plan.cell) for plan in plans]
    while len(results) < len(plans):
        first = end = len(results)
        while end == first or (end < len(plans) and sum(sizes[first : end + 1]) <= _BATCH_OPERATIONS):
            end += 1
        results += _simulate_batch(pipelines[first:end], plans[first:end])
    return results


def rounds(ranks: Column | int) -> Column:
    """Fewest micro-batches per rank that are simulated before the rest is extrapolated."""
    return np.maximum(4.0, np.ceil(SIMULATED_MICRO_BATCHES / np.asarray(ranks)))


def _sample_counts(pipeline: PipelineTimes) -> tuple[int, int] | None:
    """The two numbers of micro-batches from which a pipeline with many more is extrapolated; None if it has few."""
    fewer = int(rounds(pipeline.ranks)) * pipeline.ranks
    more = 2 * fewer
    rest = pipeline.micro_batches % pipeline.ranks
    return (fewer + rest, more + rest) if pipeline.micro_batches > 2 * (more + rest) else None


def _simulate_samples(
    pipelines: Sequence[PipelineTimes], samples: Sequence[tuple[int, int] | None]
) -> list[SimulatedPipeline]:
    """Simulate the pipelines; extrapolate those with many micro-batches."""
    counts = [counts or (pipeline.micro_batches,) for pipeline, counts in zip(pipelines, samples, strict=True)]
    partial = [
        pipeline._replace(micro_batches=count)
        for pipeline, some_counts in zip(pipelines, counts, strict=True)
        for count in some_counts
    ]
    results = iter(simulate(partial))
    return [
        _extrapolate(pipeline, some_counts, [next(results) for _ in some_counts])
        for pipeline, some_counts in zip(pipelines, counts, strict=True)
    ]


def _extrapolate(
    pipeline: PipelineTimes, counts: Sequence[int], results: Sequence[SimulatedPipeline]
) -> SimulatedPipeline:
    if len(results) == 1:
        return results[0]
    (fewer, more), (less, most) = counts, results
    times = (pipeline.micro_batches - fewer) / (more - fewer)
    columns = ("busy", "moved", "exchange", "warmup", "steady", "drain")
    values = {name: getattr(less, name) + (getattr(most, name) - getattr(less, name)) * times for name in columns}
    peak = less.kept + np.rint((most.kept - less.kept) * times).astype(np.int64)
    return SimulatedPipeline(wall=less.wall + (most.wall - less.wall) * times, kept=peak, **values)


def _simulate_batch(pipelines: Sequence[PipelineTimes], plans: Sequence[_Plan]) -> list[SimulatedPipeline]:
    sizes = [len(plan.cell) + len(plan.begin) - 1 for plan in plans]
    starts = 2 + np.cumsum([0, *sizes])
    size = int(starts[-1])
    state = _State(np.full(size, _NEVER), np.zeros(size), np.zeros(size), np.full(size, np.inf))
    state.ends[_NOTHING] = 0.0
    indices = [
        _place_operations(state, start, pipeline, plan)
        for start, pipeline, plan in zip(starts, pipelines, plans, strict=False)
    ]
    _advance(np.concatenate([at[plan.begin[:-1]] for at, plan in zip(indices, plans, strict=True)]), state)
    return [_summarize(state, at, pipeline, plan) for at, pipeline, plan in zip(indices, pipelines, plans, strict=True)]


def _place_operations(state: _State, start: int, pipeline: PipelineTimes, plan: _Plan) -> Numbers:
    """Fill in a pipeline's operations, and return their indices."""
    shift = np.repeat(np.arange(pipeline.ranks), np.diff(plan.begin)) + start
    at = np.arange(len(plan.cell)) + shift
    hop = _hops(pipeline, plan)
    table = np.concatenate([pipeline.forward, pipeline.inputs + pipeline.weights, pipeline.inputs, pipeline.weights])
    state.source[at] = np.where(plan.source >= 0, plan.source + shift[plan.source], _NOTHING)
    state.delay[at] = 0.0 if pipeline.waits else hop
    state.seconds[at] = table[plan.cell] + (hop if pipeline.waits else 0.0)
    return at


def _hops(pipeline: PipelineTimes, plan: _Plan) -> Column:
    """For each operation, seconds of the transfer of its input."""
    return np.where(plan.crosses >= 0, np.broadcast_to(pipeline.hop, len(pipeline.forward))[plan.crosses], 0.0)


def _advance(at: Numbers, state: _State) -> None:
    """Fill in the end of each operation. `at`: the first operation of each rank."""
    source, delay, seconds, ends = state
    free = np.zeros(len(at))
    while len(at):
        before, need, end, more = at.copy(), np.empty_like(at), np.empty(len(at)), np.empty(len(at))
        ready = np.empty(len(at), bool)
        for _ in range(_TURNS_PER_CHECK):
            source.take(at, out=need, mode="clip")
            ends.take(need, out=end, mode="clip")
            end += delay.take(at, out=more, mode="clip")
            np.maximum(end, free, out=end)
            end += seconds.take(at, out=more, mode="clip")
            ends[at] = end
            np.less(end, np.inf, out=ready)
            np.copyto(free, end, where=ready)
            at += ready
        left = source[at] != _NEVER
        if left.any() and (at == before).all():
            raise BadInput(f"deadlock: {int(left.sum())} of {len(left)} ranks of a pipeline wait for each other.")
        at, free = at[left], free[left]


def _summarize(state: _State, at: Numbers, pipeline: PipelineTimes, plan: _Plan) -> SimulatedPipeline:
    first, ends, seconds = plan.begin[:-1], state.ends[at], state.seconds[at]
    before = np.append(0.0, ends[:-1])
    before[first] = 0.0
    waited = np.maximum(state.ends[state.source[at]] + state.delay[at] - before, 0.0)
    moving = _hops(pipeline, plan)
    idle = waited if pipeline.waits else np.maximum(waited - moving, 0.0)
    exchange = moving if pipeline.waits else waited - idle
    wall, each = float(ends.max()), np.add.reduceat
    moved = each(moving, first)
    return SimulatedPipeline(
        wall=wall,
        busy=each(seconds, first) - (moved if pipeline.waits else 0.0),
        moved=moved,
        exchange=each(exchange, first),
        warmup=idle[first],
        steady=each(idle, first) - idle[first],
        drain=wall - ends[plan.begin[1:] - 1],
        kept=plan.kept,
    )
