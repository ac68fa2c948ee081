"""Pipeline schedules: the order of operations on each rank, as in torch.distributed.pipelining.

GPipe (Huang et al. 2018, arXiv:1811.06965), 1F1B and interleaved 1F1B (Narayanan et al. 2021, arXiv:2104.04473),
breadth first (Lamy-Poirier 2022, arXiv:2211.05953), zero bubble and its V (Qi et al. 2023, arXiv:2401.10241), DualPipeV
(DeepSeek-AI 2024, arXiv:2412.19437). A test compares them with torch's own. A chunk is a stage of a rank, numbered in
the order of its forward passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

Numbers = npt.NDArray[np.int64]

FORWARD, BACKWARD, INPUTS, WEIGHTS = range(4)
"""Kinds of operations of a stage and micro-batch: forward pass, full backward pass, and its two halves, the gradients
of inputs and of weights."""
V_SHAPED = ("zbv", "dualpipev")
"""Schedules with two stages per rank: down the ranks and back up."""
SPLIT = ("zero_bubble", *V_SHAPED)
"""Schedules that split the backward pass into the gradients of inputs and of weights."""
ONE_STAGE = ("1f1b", "gpipe")
"""Schedules with one stage per rank."""
SCHEDULES = (*ONE_STAGE, "interleaved", "looped_bfs", *SPLIT)


def among(schedule: npt.NDArray[np.float64], names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Mask of the schedules, indices into `SCHEDULES`, that are among `names`."""
    return np.isin(schedule, [SCHEDULES.index(name) for name in names])


MOST_OPERATIONS = 1 << 21
"""Most forward passes of a step over all stages: 64 ranks with 8 stages each and 1,000 micro-batches have 500,000. The
simulation of four times as many takes about 1 GB."""


class Order(NamedTuple):
    """One entry per operation, grouped by rank. `begin`: offsets of the ranks, and the total. `send_delay`: number of
    operations after this one that its result waits for, to be sent with theirs (0 or 1). `micro`: number of the
    micro-batch."""

    begin: Numbers
    kind: Numbers
    stage: Numbers
    micro: Numbers
    send_delay: Numbers


def stages_of(rank: int, schedule: str, pp: int, interleave: int) -> Numbers:
    """Stages of a rank's chunks (its stages, in the order of their forward passes), counted from the model's first
    layer. `interleave`: stages of each rank."""
    if schedule in V_SHAPED:
        return np.array([rank, 2 * pp - 1 - rank])
    return rank + pp * np.arange(interleave)


def takes(schedule: str, pp: int, micro_batches: int) -> bool:
    """Whether a schedule supports `micro_batches` micro-batches: some need rounds of equal size, one needs at least 2
    pp."""
    if schedule in ("interleaved", "zero_bubble"):
        return micro_batches % max(1, micro_batches // pp) == 0
    return schedule != "dualpipev" or micro_batches >= 2 * pp


def order(schedule: str, pp: int, interleave: int, micro_batches: int) -> Order:
    """Operations of all ranks for `micro_batches` micro-batches, in the order in which each rank runs them.
    `interleave`: stages of each rank. Raises `BadInput` if the schedule does not support as many micro-batches, or for
    more than `MOST_OPERATIONS` forward passes."""
    if pp * interleave * micro_batches > MOST_OPERATIONS:
        raise BadInput(
            f"a pipeline of {pp:,} ranks, {interleave:,} stages each and {micro_batches:,} micro-batches has "
            f"{pp * interleave * micro_batches:,} forward passes per step; at most {MOST_OPERATIONS:,} can be "
            "simulated.",
            "Use fewer stages, as --fix pp=8, or larger micro-batches.",
        )
    if not takes(schedule, pp, micro_batches):
        raise BadInput(f"schedule {schedule} with pp {pp} does not support {micro_batches} micro-batches.")
    if schedule in V_SHAPED:
        rank_order = _zbv_order if schedule == "zbv" else _dualpipev_order
        columns_of_rank = [rank_order(rank, pp, micro_batches) for rank in range(pp)]
        sizes = [len(rank_columns[0]) for rank_columns in columns_of_rank]
        kind, chunk, micro, send_delay = (np.concatenate(column) for column in zip(*columns_of_rank, strict=True))
    else:
        if schedule in ("gpipe", "looped_bfs"):
            columns = _breadth_first_order(pp, interleave, micro_batches, reverse_backward=schedule == "looped_bfs")
        else:
            columns = _one_forward_one_backward(schedule, pp, interleave, micro_batches)
        sizes = [columns[0].shape[1]] * pp
        kind, chunk, micro = (column.ravel() for column in columns)
        send_delay = np.zeros(len(kind), np.int64)
    stages = np.array([stages_of(rank, schedule, pp, interleave) for rank in range(pp)])  # [rank, chunk] -> stage
    return Order(
        begin=np.cumsum([0, *sizes]),
        kind=kind,
        stage=stages[np.repeat(np.arange(pp), sizes), chunk],
        micro=micro,
        send_delay=send_delay,
    )


def _breadth_first_order(
    pp: int, interleave: int, micro_batches: int, reverse_backward: bool
) -> tuple[Numbers, Numbers, Numbers]:
    """(kinds, chunks, micro-batches) of the operations, [rank, position]: all forward passes, then all backward passes.
    `reverse_backward`: the last micro-batch is first in the backward passes."""
    chunks, micros = np.repeat(np.arange(interleave), micro_batches), np.tile(np.arange(micro_batches), interleave)
    kind = np.repeat([FORWARD, BACKWARD], len(chunks))
    backward_micros = micros[::-1] if reverse_backward else micros
    chunk, micro = np.concatenate([chunks, chunks[::-1]]), np.concatenate([micros, backward_micros])
    # All ranks have the same order.
    return np.tile(kind, (pp, 1)), np.tile(chunk, (pp, 1)), np.tile(micro, (pp, 1))


def _one_forward_one_backward(
    schedule: str, pp: int, interleave: int, micro_batches: int
) -> tuple[Numbers, Numbers, Numbers]:
    """(kinds, chunks, micro-batches) of the operations, [rank, position]: warm-up forward passes, then one forward and
    one backward pass in turn, then the remaining backward passes; in rounds of about `pp` micro-batches that pass a
    rank's chunks one after the other. In zero bubble, rank r computes the gradients of weights r turns after those of
    inputs. A turn is the number of a pass among those of its kind on the rank; arrays are [turn] or [rank, turn], and a
    position is an index into the rank's operations."""
    round_size = micro_batches // max(1, micro_batches // pp)
    passes, rank = interleave * micro_batches, np.arange(pp)[:, None]
    splits = schedule == "zero_bubble"
    warmup_passes = (interleave - 1) * round_size + (2 if schedule == "interleaved" else 1) * (pp - 1 - rank)
    warmup_passes = np.minimum(warmup_passes, passes)
    turn = np.arange(passes)
    # Chunk and micro-batch of the forward pass of each turn; backward passes take the chunks in reverse.
    chunk = turn // round_size % interleave
    micro = turn // (round_size * interleave) * round_size + turn % round_size
    weight_passes = np.maximum(turn - rank, 0) if splits else 0  # gradients of weights before this turn
    # Before a backward pass: the warm-up and, in the steady state, a forward and a backward pass per turn; then all
    # forward passes and a backward pass per turn.
    backward_position = (
        np.where(turn < passes - warmup_passes, warmup_passes + 2 * turn + 1, passes + turn) + weight_passes
    )
    # A forward pass in the steady state is just before a backward pass.
    steady_position = np.take_along_axis(backward_position, np.maximum(turn - warmup_passes, 0), 1) - 1
    back_kind = INPUTS if splits else BACKWARD
    parts = [  # (kind, [rank, turn] -> position, [turn] -> chunk)
        (FORWARD, np.where(turn < warmup_passes, turn, steady_position), chunk),
        (back_kind, backward_position, interleave - 1 - chunk),
    ]
    if splits:
        weight_position = np.take_along_axis(backward_position, np.minimum(turn + rank, passes - 1), 1) + 1
        parts.append(
            (WEIGHTS, np.where(turn + rank < passes, weight_position, 2 * passes + turn), interleave - 1 - chunk)
        )
    kinds, chunks, micros = np.empty((3, pp, len(parts) * passes), np.int64)
    for kind, position, chunk_of_turn in parts:
        kinds[rank, position], chunks[rank, position], micros[rank, position] = kind, chunk_of_turn, micro
    return kinds, chunks, micros


_Run = tuple[str, int]
"""A sequence of operations, where `F0` is FORWARD of chunk 0, and how often it is repeated."""
_KIND_OF_LETTER = {"F": FORWARD, "B": BACKWARD, "I": INPUTS, "W": WEIGHTS}


def _expand_runs(runs: list[_Run]) -> tuple[Numbers, Numbers]:
    """(kinds, chunks) of the operations of all `runs`, one entry per operation. A chunk is a stage of the rank."""
    pairs = [
        np.tile([(_KIND_OF_LETTER[code[0]], int(code[1])) for code in operations.split()], (times, 1))
        for operations, times in runs
    ]
    kind, chunk = np.concatenate([run.reshape(-1, 2) for run in pairs]).T
    return kind, chunk


def _count_earlier_equal(*columns: Numbers) -> Numbers:
    """For each row of `columns` (integers from 0 to 3), the number of equal rows before it."""
    counts = np.zeros(len(columns[0]), np.int64)
    keys = np.ravel_multi_index(columns, [4] * len(columns))  # each row as one number in base 4
    for key in np.unique(keys):
        equal = keys == key
        counts[equal] = np.arange(np.count_nonzero(equal))
    return counts


def _zbv_order(rank: int, pp: int, micro_batches: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """(kinds, chunks, micro-batches, send delays) of one rank's operations for ZBV (Qi et al. 2023), one entry per
    operation; no result is delayed.

    The operations are given as runs, (operations, number of repetitions): `F0` is a forward pass of chunk 0, `I1` the
    gradients of inputs and `W1` those of weights of chunk 1. The n-th operation of its kind and chunk is that of
    micro-batch n.
    """
    ranks_from_here, pattern_micro_batches = pp - rank, max(2 * pp - 1, micro_batches)
    kind, chunk = _expand_runs(
        [
            ("F0", 2 * ranks_from_here - 1),
            ("F1 F0", rank),
            ("F1 I1 W1", ranks_from_here),
            ("F0 I0 W0 F1 I1 W1", pattern_micro_batches - 2 * pp + rank + 1),
            ("I0 W0 F1 I1 W1", ranks_from_here - 1),
            ("I0 I1", rank),
            ("I0 W0", ranks_from_here),
            ("W1", rank),
            ("W0", rank),
        ]
    )
    micro = _count_earlier_equal(kind, chunk)
    exists = micro < micro_batches  # the pattern needs more micro-batches than there may be
    return kind[exists], chunk[exists], micro[exists], np.zeros(np.count_nonzero(exists), np.int64)


def _dualpipev_runs(rank: int, pp: int, micro_batches: int) -> list[_Run]:
    """Operations of one rank for DualPipeV: warm-up, steady state of a forward and a backward pass of each chunk, and
    drain with delayed gradients of weights."""
    ranks_after, ranks_so_far = pp - rank - 1, rank + 1
    # When the micro-batches run out, backward passes are split (B becomes I, then W) from this one on.
    backward_passes = ["B1", "B0"] * ranks_so_far
    first_split = ranks_so_far if rank % 2 else ranks_so_far // 2 * 2 + 1
    backward_passes[first_split:] = [backward_pass.replace("B", "I") for backward_pass in backward_passes[first_split:]]
    return [
        ("F0", 2 * ranks_after),
        ("F0 F1", ranks_so_far),
        ("I1 W1 F1", ranks_after),
        ("F0 B1 F1 B0", micro_batches - 2 * pp + ranks_so_far),
        ("B1 F1 B0", ranks_after),
        (" ".join(backward_passes), 1),
        ("W0 I0", ranks_after),
        ("W0", ranks_so_far),
    ]


def _dualpipev_order(rank: int, pp: int, micro_batches: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """(kinds, chunks, micro-batches, send delays as in `Order`) of one rank's operations for DualPipeV. A forward pass
    before a full backward pass forms one operation with it, except for the first of the last rank."""
    kind, chunk = _expand_runs(_dualpipev_runs(rank, pp, micro_batches))
    is_forward, is_weights, is_inputs = kind == FORWARD, kind == WEIGHTS, kind == INPUTS
    micro = np.zeros(len(kind), np.int64)
    # Each chunk takes the micro-batches in order, in forward passes and in backward passes (full or of inputs).
    for mask in (is_forward, ~is_forward & ~is_weights):
        micro[mask] = _count_earlier_equal(chunk[mask])
    chunk[is_weights], micro[is_weights] = chunk[is_inputs], micro[is_inputs]  # the oldest first
    send_delay = np.append(is_forward[:-1] & (kind[1:] == BACKWARD), False).astype(np.int64)
    if rank == pp - 1:
        send_delay[np.argmax(send_delay)] = 0
    return kind, chunk, micro, send_delay
