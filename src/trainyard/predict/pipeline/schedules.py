"""In which order each rank of a pipeline does its part of a step: those of torch.distributed.pipelining's schedules.

GPipe (Huang et al. 2018, arXiv:1811.06965), 1F1B and interleaved 1F1B (Narayanan et al. 2021, arXiv:2104.04473),
breadth first (Lamy-Poirier 2022, arXiv:2211.05953), zero bubble and its V (Qi et al. 2023, arXiv:2401.10241), DualPipeV
(DeepSeek-AI 2024, arXiv:2412.19437). A test holds them against torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadInput

Numbers = npt.NDArray[np.int64]

FORWARD, BACKWARD, INPUTS, WEIGHTS = range(4)
"""Of a stage and micro-batch: its forward pass, its whole backward pass, or that for its inputs and for its weights."""
V_SHAPED = ("zbv", "dualpipev")
"""Two stages a rank, down the ranks and back up."""
SPLIT = ("zero_bubble", *V_SHAPED)
"""Schedules that take the gradients of weights apart."""
ONE_STAGE = ("1f1b", "gpipe")
"""One stage a rank."""
SCHEDULES = (*ONE_STAGE, "interleaved", "looped_bfs", *SPLIT)


def among(schedule: npt.NDArray[np.float64], names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Whether each, by its place in `SCHEDULES`, is one of these."""
    return np.isin(schedule, [SCHEDULES.index(name) for name in names])


MOST_OPERATIONS = 1 << 21
"""Forward passes of a step over all stages: 64 ranks with 8 stages each and 1,000 micro-batches have 500,000. Four
times as many take about 1 GB to simulate."""


class Order(NamedTuple):
    """One entry an operation, those of a rank one after the other. `begin`: where each rank's begin, and where all end.
    `held`: entries after it whose results wait for this one, so that they are sent together (0 or 1)."""

    begin: Numbers
    kind: Numbers
    stage: Numbers
    micro: Numbers
    held: Numbers


def stages_of(rank: int, schedule: str, pp: int, interleave: int) -> Numbers:
    """By their place in the model, of a rank's chunks."""
    if schedule in V_SHAPED:
        return np.array([rank, 2 * pp - 1 - rank])
    return rank + pp * np.arange(interleave)


def takes(schedule: str, pp: int, count: int) -> bool:
    """Whether a schedule is one of so many micro-batches: of rounds of equal size, or enough to fill it."""
    if schedule in ("interleaved", "zero_bubble"):
        return count % max(1, count // pp) == 0
    return schedule != "dualpipev" or count >= 2 * pp


def order(schedule: str, pp: int, interleave: int, count: int) -> Order:
    """Of all ranks, with `count` micro-batches. Raises `BadInput` where the schedule does not take as many."""
    if pp * interleave * count > MOST_OPERATIONS:
        raise BadInput(
            f"a pipeline of {pp:,} ranks, {interleave:,} stages each and {count:,} micro-batches has "
            f"{pp * interleave * count:,} forward passes a step; at most {MOST_OPERATIONS:,} are simulated.",
            "Use fewer stages, as --fix pp=8, or larger micro-batches.",
        )
    if not takes(schedule, pp, count):
        raise BadInput(f"schedule {schedule} with pp {pp} does not take {count} micro-batches.")
    if schedule in V_SHAPED:
        of_rank = _v if schedule == "zbv" else _dual
        made = [of_rank(rank, pp, count) for rank in range(pp)]
        sizes = [len(one[0]) for one in made]
        kind, chunk, micro, held = (np.concatenate(column) for column in zip(*made, strict=True))
    else:
        if schedule in ("gpipe", "looped_bfs"):
            columns = _breadth_first(pp, interleave, count, last_first=schedule == "looped_bfs")
        else:
            columns = _alternating(schedule, pp, interleave, count)
        sizes = [columns[0].shape[1]] * pp
        kind, chunk, micro = (column.ravel() for column in columns)
        held = np.zeros(len(kind), np.int64)
    mine = np.array([stages_of(rank, schedule, pp, interleave) for rank in range(pp)])
    return Order(np.cumsum([0, *sizes]), kind, mine[np.repeat(np.arange(pp), sizes), chunk], micro, held)


def _breadth_first(pp: int, interleave: int, count: int, last_first: bool) -> tuple[Numbers, Numbers, Numbers]:
    """Kinds, chunks and micro-batches, a row a rank: all forward, then all backward."""
    chunks, micros = np.repeat(np.arange(interleave), count), np.tile(np.arange(count), interleave)
    kind = np.repeat([FORWARD, BACKWARD], len(chunks))
    again = micros[::-1] if last_first else micros
    row = (kind, np.concatenate([chunks, chunks[::-1]]), np.concatenate([micros, again]))
    return np.tile(row[0], (pp, 1)), np.tile(row[1], (pp, 1)), np.tile(row[2], (pp, 1))


def _alternating(schedule: str, pp: int, interleave: int, count: int) -> tuple[Numbers, Numbers, Numbers]:
    """Likewise: some forward, then one forward and one backward in turn, then the other backward passes; in rounds of
    about `pp` micro-batches that go through a rank's chunks one after the other. In zero bubble the gradients of
    weights follow those of inputs, on each rank by its number of turns later."""
    round_ = count // max(1, count // pp)
    whole, rank = interleave * count, np.arange(pp)[:, None]
    splits = schedule == "zero_bubble"
    ahead = (interleave - 1) * round_ + (2 if schedule == "interleaved" else 1) * (pp - 1 - rank)
    ahead = np.minimum(ahead, whole)
    turns = np.arange(whole)
    chunk = turns // round_ % interleave
    micro = turns // (round_ * interleave) * round_ + turns % round_
    late = np.maximum(turns - rank, 0) if splits else 0  # weights' gradients before this turn
    back_at = np.where(turns < whole - ahead, ahead + 2 * turns + 1, whole + turns) + late
    with_one = np.take_along_axis(back_at, np.maximum(turns - ahead, 0), 1) - 1
    back_kind = INPUTS if splits else BACKWARD
    parts = [(FORWARD, np.where(turns < ahead, turns, with_one), chunk), (back_kind, back_at, interleave - 1 - chunk)]
    if splits:
        follows = np.take_along_axis(back_at, np.minimum(turns + rank, whole - 1), 1) + 1
        parts.append((WEIGHTS, np.where(turns + rank < whole, follows, 2 * whole + turns), interleave - 1 - chunk))
    kinds, chunks, micros = np.empty((3, pp, len(parts) * whole), np.int64)
    for kind, at, of in parts:
        kinds[rank, at], chunks[rank, at], micros[rank, at] = kind, of, micro
    return kinds, chunks, micros


_Run = tuple[str, int]
"""Operations, as FORWARD of chunk 0 is `F0`, and how often they are repeated."""
_KINDS = {"F": FORWARD, "B": BACKWARD, "I": INPUTS, "W": WEIGHTS}


def _runs(runs: list[_Run]) -> tuple[Numbers, Numbers]:
    """Kinds and chunks."""
    found = [np.tile([(_KINDS[one[0]], int(one[1])) for one in what.split()], (times, 1)) for what, times in runs]
    kind, chunk = np.concatenate([one.reshape(-1, 2) for one in found]).T
    return kind, chunk


def _numbered(*columns: Numbers) -> Numbers:
    """How many entries before each are like it."""
    found = np.zeros(len(columns[0]), np.int64)
    keys = np.ravel_multi_index(columns, [4] * len(columns))
    for key in np.unique(keys):
        alike = keys == key
        found[alike] = np.arange(np.count_nonzero(alike))
    return found


def _v(rank: int, pp: int, count: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Kinds, chunks, micro-batches and what is held, of one rank."""
    after, some = pp - rank, max(2 * pp - 1, count)
    kind, chunk = _runs(
        [
            ("F0", 2 * after - 1),
            ("F1 F0", rank),
            ("F1 I1 W1", after),
            ("F0 I0 W0 F1 I1 W1", some - 2 * pp + rank + 1),
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
    """Likewise. A forward pass before a whole backward pass is one operation with it, but for the last rank's first."""
    kind, chunk = _runs(_dual_runs(rank, pp, count))
    forward, late, waits = kind == FORWARD, kind == WEIGHTS, kind == INPUTS
    micro = np.zeros(len(kind), np.int64)
    for some in (forward, ~forward & ~late):
        micro[some] = _numbered(chunk[some])
    chunk[late], micro[late] = chunk[waits], micro[waits]  # the oldest first
    held = np.append(forward[:-1] & (kind[1:] == BACKWARD), False).astype(np.int64)
    if rank == pp - 1:
        held[np.argmax(held)] = 0
    return kind, chunk, micro, held
