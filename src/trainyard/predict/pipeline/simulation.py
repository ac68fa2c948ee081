"""A step of a pipeline, operation by operation: how long it takes, and what each rank does of that time.

A rank does its operations in the order of its schedule, each as soon as what it needs is there: from the stage before
it forward, from the one behind it backward. All ranks of many pipelines go on at once, one operation a turn.
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
"""Places of a result that is there from the beginning, and of one that never comes."""
_LOOK = 64
"""Turns after which it is asked whether all is done."""
_TOGETHER = 1 << 18
"""Operations of all pipelines that are simulated at once, so that they take little memory."""


FOLLOWED = 1 << 9
"""About the fewest micro-batches of which twice as many are simulated, to extend a step with more than four times as
many: its ranks repeat themselves long before, and the time is within 1 in 1,000."""


class PipelineTimes(NamedTuple):
    """`forward`, `inputs`, `weights`: seconds of a micro-batch on each stage, in the order of the model: forward,
    backward for what went in and for the stage's weights. `hop`: seconds from one rank to another, or from each stage
    to the next one; `waits`: the rank that receives does nothing else meanwhile."""

    schedule: str
    ranks: int
    micro_batches: int
    forward: Column
    inputs: Column
    weights: Column
    hop: float | Column
    waits: bool = False


class SimulatedPipeline(NamedTuple):
    """Seconds, of each rank but for `wall`: they sum to it. `busy`: at work; `exchange`: waited for what is on its way,
    of all that is `moved` to it (that is no part of the sum); `warmup`, `steady`, `drain`: idle before the first
    operation, between them, and after the last. `kept`: most micro-batches whose backward pass is still to come, each
    of its stages counted by itself."""

    wall: float
    busy: Column
    moved: Column
    exchange: Column
    warmup: Column
    steady: Column
    drain: Column
    kept: Numbers


class _Plan(NamedTuple):
    """The operations of all ranks one after the other. `what`: place in the table of seconds (kind x stage); `source`:
    the operation whose result it needs, or less than 0; `crosses`: the stage behind which that comes from another rank,
    or less than 0. `begin`: where each rank's begin, and where all end."""

    what: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    crosses: npt.NDArray[np.int32]
    begin: Numbers
    kept: Numbers


@lru_cache(maxsize=128)
def _plan(schedule: str, ranks: int, interleave: int, count: int) -> _Plan:
    begin, kind, stage, micro, held = schedules.order(schedule, ranks, interleave, count)
    of = np.repeat(np.arange(ranks), np.diff(begin))
    stages, places = ranks * interleave, np.arange(len(kind))
    made = np.full((2, stages + 2, count), -1)  # where a stage's results are: [0 forward, 1 backward][stage + 1][micro]
    forward, late = kind == FORWARD, kind == WEIGHTS
    back = ~forward & ~late
    for way, some in enumerate((forward, back)):
        made[way, stage[some] + 1, micro[some]] = places[some] + held[some]
    source = np.where(forward, made[0, stage, micro], np.where(back, made[1, stage + 2, micro], -1))
    crosses = np.where((source >= 0) & (of[source] != of), np.where(forward, stage - 1, stage), -1)
    total = np.cumsum(np.where(forward, 1, np.where(kind == INPUTS, 0, -1)))  # each rank ends with none
    what, source, crosses = (one.astype(np.int32) for one in (kind * stages + stage, source, crosses))  # many are kept
    return _Plan(what, source, crosses, begin, np.maximum.reduceat(total, begin[:-1]))


def kept(schedule: str, ranks: int, interleave: int, count: int) -> Numbers:
    """Of each rank most micro-batches on their way, each of its stages counted by itself."""
    return _plan(schedule, ranks, interleave, count).kept


class _State(NamedTuple):
    """One entry an operation, those of a rank one after the other, and behind them one that never comes. `source`: the
    place of what it needs; `delay`: seconds until that is there; `seconds` that it takes, and when it `ends`."""

    source: Numbers
    delay: Column
    seconds: Column
    ends: Column


def simulate(pipelines: Sequence[PipelineTimes]) -> list[SimulatedPipeline]:
    """Of each. Raises `BadInput` where a schedule does not take so many micro-batches, or its ranks wait for each
    other."""
    follows = [_follows(pipeline) for pipeline in pipelines]
    if any(follows):
        return _extended(pipelines, follows)
    found: list[SimulatedPipeline] = []
    plans = [_plan(one.schedule, one.ranks, len(one.forward) // one.ranks, one.micro_batches) for one in pipelines]
    sizes = [len(plan.what) for plan in plans]
    while len(found) < len(plans):
        first = end = len(found)
        while end == first or (end < len(plans) and sum(sizes[first : end + 1]) <= _TOGETHER):
            end += 1
        found += _together(pipelines[first:end], plans[first:end])
    return found


def rounds(ranks: Column | int) -> Column:
    """How many micro-batches for each rank are simulated at least, before the rest is extended."""
    return np.maximum(4.0, np.ceil(FOLLOWED / np.asarray(ranks)))


def _follows(pipeline: PipelineTimes) -> tuple[int, int] | None:
    """The two numbers of micro-batches that are simulated for a pipeline with many more; None if it has few."""
    fewer = int(rounds(pipeline.ranks)) * pipeline.ranks
    more = 2 * fewer
    rest = pipeline.micro_batches % pipeline.ranks
    return (fewer + rest, more + rest) if pipeline.micro_batches > 2 * (more + rest) else None


def _extended(pipelines: Sequence[PipelineTimes], follows: Sequence[tuple[int, int] | None]) -> list[SimulatedPipeline]:
    """Simulate the pipelines; those with many micro-batches continue at the pace of the last that were simulated."""
    counts = [counts or (pipeline.micro_batches,) for pipeline, counts in zip(pipelines, follows, strict=True)]
    partial = [
        pipeline._replace(micro_batches=count)
        for pipeline, some in zip(pipelines, counts, strict=True)
        for count in some
    ]
    ran = iter(simulate(partial))
    return [
        _beyond(pipeline, some, [next(ran) for _ in some]) for pipeline, some in zip(pipelines, counts, strict=True)
    ]


def _beyond(pipeline: PipelineTimes, counts: Sequence[int], ran: Sequence[SimulatedPipeline]) -> SimulatedPipeline:
    if len(ran) == 1:
        return ran[0]
    (fewer, more), (less, most) = counts, ran
    times = (pipeline.micro_batches - fewer) / (more - fewer)
    columns = ("busy", "moved", "exchange", "warmup", "steady", "drain")
    values = {name: getattr(less, name) + (getattr(most, name) - getattr(less, name)) * times for name in columns}
    kept = less.kept + np.rint((most.kept - less.kept) * times).astype(np.int64)
    return SimulatedPipeline(wall=less.wall + (most.wall - less.wall) * times, kept=kept, **values)


def _together(pipelines: Sequence[PipelineTimes], plans: Sequence[_Plan]) -> list[SimulatedPipeline]:
    sizes = [len(plan.what) + len(plan.begin) - 1 for plan in plans]
    starts = 2 + np.cumsum([0, *sizes])
    size = int(starts[-1])
    state = _State(np.full(size, _NEVER), np.zeros(size), np.zeros(size), np.full(size, np.inf))
    state.ends[_NOTHING] = 0.0
    laid = [_laid(state, start, one, plan) for start, one, plan in zip(starts, pipelines, plans, strict=False)]
    _go(np.concatenate([at[plan.begin[:-1]] for at, plan in zip(laid, plans, strict=True)]), state)
    return [_ran(state, at, one, plan) for at, one, plan in zip(laid, pipelines, plans, strict=True)]


def _laid(state: _State, start: int, one: PipelineTimes, plan: _Plan) -> Numbers:
    """Fills in a pipeline's operations; their places."""
    shift = np.repeat(np.arange(one.ranks), np.diff(plan.begin)) + start
    at = np.arange(len(plan.what)) + shift
    hop = _hops(one, plan)
    table = np.concatenate([one.forward, one.inputs + one.weights, one.inputs, one.weights])
    state.source[at] = np.where(plan.source >= 0, plan.source + shift[plan.source], _NOTHING)
    state.delay[at] = 0.0 if one.waits else hop
    state.seconds[at] = table[plan.what] + (hop if one.waits else 0.0)
    return at


def _hops(one: PipelineTimes, plan: _Plan) -> Column:
    """Of each operation: seconds that what it needs is on its way."""
    return np.where(plan.crosses >= 0, np.broadcast_to(one.hop, len(one.forward))[plan.crosses], 0.0)


def _go(at: Numbers, state: _State) -> None:
    """Fills in when each operation ends. `at`: of each rank the first."""
    source, delay, seconds, ends = state
    free = np.zeros(len(at))
    while len(at):
        before, need, end, more = at.copy(), np.empty_like(at), np.empty(len(at)), np.empty(len(at))
        ready = np.empty(len(at), bool)
        for _ in range(_LOOK):
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


def _ran(state: _State, at: Numbers, one: PipelineTimes, plan: _Plan) -> SimulatedPipeline:
    first, ends, seconds = plan.begin[:-1], state.ends[at], state.seconds[at]
    before = np.append(0.0, ends[:-1])
    before[first] = 0.0
    waited = np.maximum(state.ends[state.source[at]] + state.delay[at] - before, 0.0)
    moving = _hops(one, plan)
    idle = waited if one.waits else np.maximum(waited - moving, 0.0)
    exchange = moving if one.waits else waited - idle
    wall, each = float(ends.max()), np.add.reduceat
    moved = each(moving, first)
    return SimulatedPipeline(
        wall=wall,
        busy=each(seconds, first) - (moved if one.waits else 0.0),
        moved=moved,
        exchange=each(exchange, first),
        warmup=idle[first],
        steady=each(idle, first) - idle[first],
        drain=wall - ends[plan.begin[1:] - 1],
        kept=plan.kept,
    )
