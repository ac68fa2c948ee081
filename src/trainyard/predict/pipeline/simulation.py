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

_AVAILABLE_RESULT, _MISSING_RESULT = 0, 1
"""Indices of a result that is available from the beginning, and of one that never is."""
_MIN_ROUNDS = 4.0
"""Micro-batches per rank, at least, of a pipeline from which longer ones are extrapolated."""
_TURNS_PER_CHECK = 64
"""Turns between checks whether all ranks are done."""
_BATCH_OPERATIONS = 1 << 20
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


class SimulatedOperations(NamedTuple):
    """The operations of a step, grouped by rank in the order in which it runs them. `kind`: one of
    `schedules.FORWARD` to `schedules.WEIGHTS`; `micro`: number of the micro-batch; `start`, `stop`: seconds."""

    rank: Numbers
    kind: Numbers
    stage: Numbers
    micro: Numbers
    start: Column
    stop: Column


class _OperationTable(NamedTuple):
    """The operations of all ranks, grouped by rank. `seconds_index`: index into the table of seconds
    (kind x stage); `source`: the operation whose result it needs, or -1; `crosses`: the stage after which that result
    crosses ranks, or -1. `begin`: offsets of the ranks, and the total. `peak_in_flight`: most in-flight
    micro-batches of each rank, counted separately for each of its stages."""

    seconds_index: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    crosses: npt.NDArray[np.int32]
    begin: Numbers
    peak_in_flight: Numbers


@lru_cache(maxsize=128)
def _operation_table(schedule: str, ranks: int, interleave: int, micro_batches: int) -> _OperationTable:
    """The operations of a schedule on all ranks, with the operation that each one waits for. A cache, since a search
    simulates many pipelines of one schedule."""
    # One entry per operation, grouped by rank; `begin`: first entry of each rank, and the total.
    begin, kind, stage, micro, send_delay = schedules.order(schedule, ranks, interleave, micro_batches)
    rank = np.repeat(np.arange(ranks), np.diff(begin))  # of each operation
    stages, operations = ranks * interleave, np.arange(len(kind))
    # [0 forward or 1 backward, stage + 1, micro-batch] -> operation that sends the result; -1: before the first stage
    # and after the last one.
    result_of = np.full((2, stages + 2, micro_batches), -1)
    is_forward, sends = kind == FORWARD, kind != WEIGHTS
    direction = 1 - is_forward
    result_of[direction[sends], stage[sends] + 1, micro[sends]] = (operations + send_delay)[sends]
    # A forward pass needs the result of the stage before, a backward pass that of the stage after.
    source = np.where(sends, result_of[direction, stage + 2 * direction, micro], -1)
    crosses = np.where((source >= 0) & (rank[source] != rank), stage - is_forward, -1)
    # Activations are kept from the forward pass to the (end of the) backward pass; each rank ends with 0.
    in_flight = np.cumsum(np.where(is_forward, 1, np.where(kind == INPUTS, 0, -1)))
    # int32, because the cache holds many plans
    seconds_index, source, crosses = (numbers.astype(np.int32) for numbers in (kind * stages + stage, source, crosses))
    return _OperationTable(
        seconds_index=seconds_index,
        source=source,
        crosses=crosses,
        begin=begin,
        peak_in_flight=np.maximum.reduceat(in_flight, begin[:-1]),
    )


def peak_in_flight(schedule: str, ranks: int, interleave: int, count: int) -> Numbers:
    """Peak in-flight micro-batches of each rank, counted separately for each of its stages."""
    return _operation_table(schedule, ranks, interleave, count).peak_in_flight


class _SimulationState(NamedTuple):
    """One entry per operation, grouped by rank, each group followed by an operation that never starts. `source`: index
    of the operation it waits for; `delay`: seconds from its end to the arrival of its result; `seconds`: duration;
    `ends`: time at which it ends."""

    source: Numbers
    delay: Column
    seconds: Column
    ends: Column


def simulate(pipelines: Sequence[PipelineTimes]) -> list[SimulatedPipeline]:
    """Simulates each pipeline's step, in batches that bound the memory; one result per pipeline, in their order. Raises
    `BadInput` if a schedule does not support the number of micro-batches, or deadlocks."""
    counts = [_sample_counts(pipeline) for pipeline in pipelines]
    if any(counts):  # some are extrapolated from simulations with fewer micro-batches
        return _simulate_samples(pipelines, counts)
    results: list[SimulatedPipeline] = []
    tables = [
        _operation_table(
            pipeline.schedule, pipeline.ranks, len(pipeline.forward) // pipeline.ranks, pipeline.micro_batches
        )
        for pipeline in pipelines
    ]
    sizes = [len(table.seconds_index) for table in tables]
    while len(results) < len(tables):  # batches of pipelines [first, end)
        first = end = len(results)
        while end == first or (end < len(tables) and sum(sizes[first : end + 1]) <= _BATCH_OPERATIONS):
            end += 1
        results += _simulate_batch(pipelines[first:end], tables[first:end])
    return results


def simulate_operations(pipeline: PipelineTimes) -> SimulatedOperations:
    """Simulates every operation of a step. Raises `BadInput` as `simulate` does."""
    interleave = len(pipeline.forward) // pipeline.ranks
    begin, kind, stage, micro, _ = schedules.order(
        pipeline.schedule, pipeline.ranks, interleave, pipeline.micro_batches
    )
    table = _operation_table(pipeline.schedule, pipeline.ranks, interleave, pipeline.micro_batches)
    state, (entries,) = _build_state([pipeline], [table])
    _run_operations(entries[table.begin[:-1]], state)
    stop = state.ends[entries]
    return SimulatedOperations(
        rank=np.repeat(np.arange(pipeline.ranks), np.diff(begin)),
        kind=kind,
        stage=stage,
        micro=micro,
        start=stop - state.seconds[entries],
        stop=stop,
    )


def rounds(ranks: Column | int) -> Column:
    """Fewest micro-batches, as a multiple of the ranks, that are simulated before the rest is extrapolated."""
    return np.maximum(_MIN_ROUNDS, np.ceil(SIMULATED_MICRO_BATCHES / np.asarray(ranks)))


def _sample_counts(pipeline: PipelineTimes) -> tuple[int, int] | None:
    """The two numbers of micro-batches from which a pipeline with many more is extrapolated; None if it has few."""
    fewer_micro_batches = int(rounds(pipeline.ranks)) * pipeline.ranks
    more_micro_batches = 2 * fewer_micro_batches
    remainder = pipeline.micro_batches % pipeline.ranks
    return (
        (fewer_micro_batches + remainder, more_micro_batches + remainder)
        if pipeline.micro_batches > 2 * (more_micro_batches + remainder)
        else None
    )


def _simulate_samples(
    pipelines: Sequence[PipelineTimes], samples: Sequence[tuple[int, int] | None]
) -> list[SimulatedPipeline]:
    """Simulates the pipelines. `samples`: for each the two numbers of micro-batches from which it is extrapolated, or
    None if it is simulated as it is."""
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
    """The step of `pipeline` by linear extrapolation in the number of micro-batches. `results`: its simulations with
    each number of micro-batches in `counts`, one (the exact result) or two."""
    if len(results) == 1:
        return results[0]
    (count_1, count_2), (result_1, result_2) = counts, results
    factor = (pipeline.micro_batches - count_1) / (count_2 - count_1)  # of the difference between the simulations
    columns = ("busy", "moved", "exchange", "warmup", "steady", "drain")
    values = {
        name: getattr(result_1, name) + (getattr(result_2, name) - getattr(result_1, name)) * factor for name in columns
    }
    peak = result_1.kept + np.rint((result_2.kept - result_1.kept) * factor).astype(np.int64)
    return SimulatedPipeline(wall=result_1.wall + (result_2.wall - result_1.wall) * factor, kept=peak, **values)


def _simulate_batch(pipelines: Sequence[PipelineTimes], tables: Sequence[_OperationTable]) -> list[SimulatedPipeline]:
    """Simulates pipelines whose operations fit in memory together. `tables`: the operations of each, grouped by rank,
    those of rank r from `begin[r]` to before `begin[r + 1]`."""
    state, entries_of = _build_state(pipelines, tables)
    _run_operations(
        np.concatenate([entries[table.begin[:-1]] for entries, table in zip(entries_of, tables, strict=True)]), state
    )
    return [
        _summarize_ranks(state, entries, pipeline, table)
        for entries, pipeline, table in zip(entries_of, pipelines, tables, strict=True)
    ]


def _build_state(
    pipelines: Sequence[PipelineTimes], tables: Sequence[_OperationTable]
) -> tuple[_SimulationState, list[Numbers]]:
    """The state before the first operation, and for each pipeline the entry of each of its operations. The state has
    two entries for constant results (`_MISSING_RESULT`, `_AVAILABLE_RESULT`), then those of each pipeline: its
    operations, and for each rank one that never starts, after its last."""
    entry_counts = [len(table.seconds_index) + len(table.begin) - 1 for table in tables]
    first_entries = 2 + np.cumsum([0, *entry_counts])
    entry_count = int(first_entries[-1])
    state = _SimulationState(
        source=np.full(entry_count, _MISSING_RESULT),
        delay=np.zeros(entry_count),
        seconds=np.zeros(entry_count),
        ends=np.full(entry_count, np.inf),
    )
    state.ends[_AVAILABLE_RESULT] = 0.0
    return state, [
        _insert_operations(state, start, pipeline, table)
        for start, pipeline, table in zip(first_entries, pipelines, tables, strict=False)
    ]


def _insert_operations(state: _SimulationState, start: int, pipeline: PipelineTimes, table: _OperationTable) -> Numbers:
    """Writes a pipeline's operations into the state, from entry `start` on, and returns the entry of each operation."""
    # Each rank before an operation's has one entry more than operations.
    offset = np.repeat(np.arange(pipeline.ranks), np.diff(table.begin)) + start
    entries = np.arange(len(table.seconds_index)) + offset
    transfer_s = _input_transfer_seconds(pipeline, table)
    operation_kind_s = np.concatenate(  # [kind x stage], in the order of FORWARD, BACKWARD, INPUTS, WEIGHTS
        [pipeline.forward, pipeline.inputs + pipeline.weights, pipeline.inputs, pipeline.weights]
    )
    state.source[entries] = np.append(entries, _AVAILABLE_RESULT)[table.source]  # -1 is the last one
    state.delay[entries] = 0.0 if pipeline.waits else transfer_s
    state.seconds[entries] = operation_kind_s[table.seconds_index] + (transfer_s if pipeline.waits else 0.0)
    return entries


def _input_transfer_seconds(pipeline: PipelineTimes, table: _OperationTable) -> Column:
    """For each operation, seconds of the transfer of its input; 0 if that is on the same rank."""
    hops_s = np.broadcast_to(pipeline.hop, len(pipeline.forward))
    return np.append(hops_s, 0.0)[table.crosses]  # -1 is the last one


def _run_operations(current: Numbers, state: _SimulationState) -> None:
    """Fills in `state.ends`, the end of each operation. `current`: for each rank the entry in `state` of its first
    operation; it is changed. In every turn each rank whose input has arrived runs one operation and moves to its next
    entry. Raises `BadInput` if ranks wait for each other."""
    source, delay_s, seconds, ends_s = state
    rank_free_s = np.zeros(len(current))  # end of each rank's previous operation
    while len(current):
        previous, is_ready = current.copy(), np.empty(len(current), bool)
        # Buffers, [rank], that avoid allocations in the loop.
        inputs, end_s, addend_s = np.empty_like(current), np.empty(len(current)), np.empty(len(current))
        for _ in range(_TURNS_PER_CHECK):
            # end = max(end of the input's operation + transfer, rank free) + duration; infinite if the input is
            # missing.
            source.take(current, out=inputs, mode="clip")
            ends_s.take(inputs, out=end_s, mode="clip")
            end_s += delay_s.take(current, out=addend_s, mode="clip")
            np.maximum(end_s, rank_free_s, out=end_s)
            end_s += seconds.take(current, out=addend_s, mode="clip")
            ends_s[current] = end_s
            np.less(end_s, np.inf, out=is_ready)
            np.copyto(rank_free_s, end_s, where=is_ready)
            current += is_ready
        is_unfinished = source[current] != _MISSING_RESULT
        if is_unfinished.any() and (current == previous).all():
            raise BadInput(
                f"deadlock: {int(is_unfinished.sum())} of {len(is_unfinished)} ranks of a pipeline wait for each other."
            )
        current, rank_free_s = current[is_unfinished], rank_free_s[is_unfinished]


def _summarize_ranks(
    state: _SimulationState, entries: Numbers, pipeline: PipelineTimes, table: _OperationTable
) -> SimulatedPipeline:
    """How each rank of a simulated pipeline spends the step. `entries`: the state's entry of each of the pipeline's
    operations, which are grouped by rank."""
    first_operations, ends_s, duration_s = table.begin[:-1], state.ends[entries], state.seconds[entries]
    # End of the operation before on the same rank.
    rank_free_s = np.append(0.0, ends_s[:-1])
    rank_free_s[first_operations] = 0.0
    waiting_s = np.maximum(state.ends[state.source[entries]] + state.delay[entries] - rank_free_s, 0.0)
    transfer_s = _input_transfer_seconds(pipeline, table)
    # A rank that waits for the input of an operation is idle, except while the input is transferred.
    idle_s = waiting_s if pipeline.waits else np.maximum(waiting_s - transfer_s, 0.0)
    exposed_transfer_s = transfer_s if pipeline.waits else waiting_s - idle_s
    wall_s, sum_by_rank = float(ends_s.max()), np.add.reduceat  # sums [operation] from each rank's first operation on
    transfers_of_rank_s = sum_by_rank(transfer_s, first_operations)
    return SimulatedPipeline(
        wall=wall_s,
        busy=sum_by_rank(duration_s, first_operations) - (transfers_of_rank_s if pipeline.waits else 0.0),
        moved=transfers_of_rank_s,
        exchange=sum_by_rank(exposed_transfer_s, first_operations),
        warmup=idle_s[first_operations],
        steady=sum_by_rank(idle_s, first_operations) - idle_s[first_operations],
        drain=wall_s - ends_s[table.begin[1:] - 1],
        kept=table.peak_in_flight,
    )
