"""Pipeline schedules: the order of operations on each rank, as in torch.distributed.pipelining.

GPipe (Huang et al. 2018, arXiv:1811.06965), 1F1B and interleaved 1F1B (Narayanan et al. 2021, arXiv:2104.04473),
breadth first (Lamy-Poirier 2022, arXiv:2211.05953), zero bubble and its V (Qi et al. 2023, arXiv:2401.10241), DualPipeV
(DeepSeek-AI 2024, arXiv:2412.19437). A test compares them with torch's own.
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
    """One entry per operation, grouped by rank. `begin`: offsets of the ranks, and the total. `held`: number of
    operations for which this one's result is held back, to be sent with theirs (0 or 1)."""

    begin: Numbers
    kind: Numbers
    stage: Numbers
    micro: Numbers
    held: Numbers


def stages_of(rank: int, schedule: str, pp: int, interleave: int) -> Numbers:
    """Stages of a rank's chunks, counted from the model's first layer."""
    if schedule in V_SHAPED:
        return np.array([rank, 2 * pp - 1 - rank])
    return rank + pp * np.arange(interleave)


def takes(schedule: str, pp: int, count: int) -> bool:
    """Whether a schedule supports `count` micro-batches: some need rounds of equal size, one needs at least 2 pp."""
    if schedule in ("interleaved", "zero_bubble"):
        return count % max(1, count // pp) == 0
    return schedule != "dualpipev" or count >= 2 * pp


def order(schedule: str, pp: int, interleave: int, count: int) -> Order:
    """Operations of all ranks for `count` micro-batches. Raises `BadInput` if the schedule does not support as many."""
    if pp * interleave * count > MOST_OPERATIONS:
        raise BadInput(
            f"a pipeline of {pp:,} ranks, {interleave:,} stages each and {count:,} micro-batches has "
            f"{pp * interleave * count:,} forward passes per step; at most {MOST_OPERATIONS:,} can be simulated.",
            "Use fewer stages, as --fix pp=8, or larger micro-batches.",
        )
    if not takes(schedule, pp, count):
        raise BadInput(f"schedule {schedule} with pp {pp} does not support {count} micro-batches.")
    if schedule in V_SHAPED:
        rank_order = _v if schedule == "zbv" else _dual
        columns_of_rank = [rank_order(rank, pp, count) for rank in range(pp)]
        sizes = [len(rank_columns[0]) for rank_columns in columns_of_rank]
        kind, chunk, micro, held = (np.concatenate(column) for column in zip(*columns_of_rank, strict=True))
    else:
        if schedule in ("gpipe", "looped_bfs"):
            columns = _breadth_first(pp, interleave, count, last_first=schedule == "looped_bfs")
        else:
            columns = _alternating(schedule, pp, interleave, count)
        sizes = [columns[0].shape[1]] * pp
        kind, chunk, micro = (column.ravel() for column in columns)
        held = np.zeros(len(kind), np.int64)
    stages = np.array([stages_of(rank, schedule, pp, interleave) for rank in range(pp)])
    return Order(np.cumsum([0, *sizes]), kind, stages[np.repeat(np.arange(pp), sizes), chunk], micro, held)


def _breadth_first(pp: int, interleave: int, count: int, last_first: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Kinds, chunks and micro-batches, a row per rank: all forward passes, then all backward passes."""
    chunks, micros = np.repeat(np.arange(interleave), count), np.tile(np.arange(count), interleave)
    kind = np.repeat([FORWARD, BACKWARD], len(chunks))
    again = micros[::-1] if last_first else micros
    row = (kind, np.concatenate([chunks, chunks[::-1]]), np.concatenate([micros, again]))
    return np.tile(row[0], (pp, 1)), np.tile(row[1], (pp, 1)), np.tile(row[2], (pp, 1))


def _alternating(schedule: str, pp: int, interleave: int, count: int) -> tuple[Numbers, Numbers, Numbers]:
    """Kinds, chunks and micro-batches, a row per rank: warm-up forward passes, then one forward and one backward pass
    in turn, then the remaining backward passes; in rounds of about `pp` micro-batches that pass a rank's chunks one
    after the other. In zero bubble, rank r computes the gradients of weights r turns after those of inputs."""
    round_ = count // max(1, count // pp)
    total, rank = interleave * count, np.arange(pp)[:, None]
    splits = schedule == "zero_bubble"
    ahead = (interleave - 1) * round_ + (2 if schedule == "interleaved" else 1) * (pp - 1 - rank)
    ahead = np.minimum(ahead, total)
    turns = np.arange(total)
    chunk = turns // round_ % interleave
    micro = turns // (round_ * interleave) * round_ + turns % round_
    late = np.maximum(turns - rank, 0) if splits else 0  # gradients of weights before this turn
    back_at = np.where(turns < total - ahead, ahead + 2 * turns + 1, total + turns) + late
    with_one = np.take_along_axis(back_at, np.maximum(turns - ahead, 0), 1) - 1
    back_kind = INPUTS if splits else BACKWARD
    parts = [(FORWARD, np.where(turns < ahead, turns, with_one), chunk), (back_kind, back_at, interleave - 1 - chunk)]
    if splits:
        follows = np.take_along_axis(back_at, np.minimum(turns + rank, total - 1), 1) + 1
        parts.append((WEIGHTS, np.where(turns + rank < total, follows, 2 * total + turns), interleave - 1 - chunk))
    kinds, chunks, micros = np.empty((3, pp, len(parts) * total), np.int64)
    for kind, at, chunk_at in parts:
        kinds[rank, at], chunks[rank, at], micros[rank, at] = kind, chunk_at, micro
    return kinds, chunks, micros


_Run = tuple[str, int]
"""A sequence of operations, where `F0` is FORWARD of chunk 0, and how often it is repeated."""
_KINDS = {"F": FORWARD, "B": BACKWARD, "I": INPUTS, "W": WEIGHTS}


def _runs(runs: list[_Run]) -> tuple[Numbers, Numbers]:
    """Kinds and chunks of the operations of all runs."""
    pairs = [
        np.tile([(_KINDS[code[0]], int(code[1])) for code in operations.split()], (times, 1))
        for operations, times in runs
    ]
    kind, chunk = np.concatenate([run.reshape(-1, 2) for run in pairs]).T
    return kind, chunk


def _numbered(*columns: Numbers) -> Numbers:
    """For each entry, the number of equal entries before it."""
    counts = np.zeros(len(columns[0]), np.int64)
    keys = np.ravel_multi_index(columns, [4] * len(columns))
    for key in np.unique(keys):
        equal = keys == key
        counts[equal] = np.arange(np.count_nonzero(equal))
    return counts


def _v(rank: int, pp: int, count: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Kinds, chunks, micro-batches and held results of one rank, for ZBV."""
    after, padded = pp - rank, max(2 * pp - 1, count)
    kind, chunk = _runs(
        [
            ("F0", 2 * after - 1),
            ("F1 F0", rank),
            ("F1 I1 W1", after),
            ("F0 I0 W0 F1 I1 W1", padded - 2 * pp + rank + 1),
            ("I0 W0 F1 I1 W1", after - 1),
            ("I0 I1", rank),
            ("I0 W0", after),
            ("W1", rank),
            ("W0", rank),
        ]
    )
    micro = _numbered(kind, chunk)
    there = micro < count  # the pattern needs more micro-batches than there may be
    return kind[there], chunk[there], micro[there], np.zeros(np.count_nonzero(there), np.int64)


def _dual_runs(rank: int, pp: int, count: int) -> list[_Run]:
    after, own = pp - rank - 1, rank + 1
    halves = ["B1", "B0"] * own
    first_split = own if rank % 2 else own // 2 * 2 + 1
    halves[first_split:] = [half.replace("B", "I") for half in halves[first_split:]]
    return [
        ("F0", 2 * after),
        ("F0 F1", own),
        ("I1 W1 F1", after),
        ("F0 B1 F1 B0", count - 2 * pp + own),
        ("B1 F1 B0", after),
        (" ".join(halves), 1),
        ("W0 I0", after),
        ("W0", own),
    ]


def _dual(rank: int, pp: int, count: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Kinds, chunks, micro-batches and held results of one rank, for DualPipeV. A forward pass before a full backward
    pass forms one operation with it, except for the first of the last rank."""
    kind, chunk = _runs(_dual_runs(rank, pp, count))
    forward, late, waits = kind == FORWARD, kind == WEIGHTS, kind == INPUTS
    micro = np.zeros(len(kind), np.int64)
    for mask in (forward, ~forward & ~late):
        micro[mask] = _numbered(chunk[mask])
    chunk[late], micro[late] = chunk[waits], micro[waits]  # the oldest first
    held = np.append(forward[:-1] & (kind[1:] == BACKWARD), False).astype(np.int64)
    if rank == pp - 1:
        held[np.argmax(held)] = 0
    return kind, chunk, micro, held
