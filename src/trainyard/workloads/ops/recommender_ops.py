"""The recommender told layer by layer: parameters, FLOPs and bytes. No torch here.

Of divided tables, the mean over the ranks: with whole tables on each their work differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job, Layout, Recipe
from trainyard.train.recommender import recommender_rules
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules import sample_rules, trainable
from trainyard.train.sizes import convert
from trainyard.workloads.ops.tally import Tally

AXES = ("dp_replicate", "dp_shard")
_F32 = words.DTYPES["float32"]
_ID = 8
"""Bytes."""


def check(job: Job) -> Dlrm:
    """The job's sizes. Raises `BadJob` for what cannot be trained."""
    sizes = convert(job, Dlrm)
    sample_rules.check(job)
    trainable.check(job, AXES)
    recommender_rules.check(job, sizes)
    return sizes


def operations(job: Job) -> list[Operation]:
    """One step of one rank. Raises `BadJob` for what cannot be trained."""
    sizes = check(job)
    told = tally(sizes, job.recipe)
    if not recommender_rules.divided(job, sizes):
        return [*told.operations(job), *_look_up(job, sizes)]
    tables = [rows * sizes.width for rows in sizes.rows]
    told.here -= sum(tables)
    told.tensors -= len(tables)
    return [*told.operations(job), *_look_up(job, sizes), *_of_divided(job, tables, sizes.tables == "by_table")]


def model_flops(job: Job) -> int:
    """FLOPs a step needs over all ranks, for MFU: of the matrices. Raises `BadJob` likewise."""
    return tally(check(job), job.recipe).model_flops(job)


def weights(job: Job) -> int:
    """Of one rank before data parallelism divides them; the mean, where tables are. Raises `BadJob` likewise."""
    sizes = check(job)
    whole, tables = tally(sizes, job.recipe).parameters, sum(sizes.rows) * sizes.width
    return whole - tables + -(-tables // job.layout.batch_ranks) if recommender_rules.divided(job, sizes) else whole


def tally(sizes: Dlrm, recipe: Recipe) -> Tally:
    """All but looking up rows."""
    told, wide = Tally(recipe), sizes.features
    told.weights(*[rows * sizes.width for rows in sizes.rows])
    with told.block():
        _mlp(told, sizes.dense, sizes.bottom, first=True)
    told.pointwise(wide, 0, 2, 0, 2)  # side by side
    for _ in range(sizes.cross_layers):
        with told.block():
            told.linear(1, wide, sizes.cross_rank)
            told.linear(1, sizes.cross_rank, wide, bias=True)
            told.pointwise(wide, 2, 4, 4, 7)
    with told.block():
        _mlp(told, wide, sizes.top, first=False)
    told.loss(1, "elementwise")
    return told


def _mlp(told: Tally, wide: int, widths: Sequence[int], first: bool) -> None:
    """The first one gets data and ends in a ReLU, the other one ends in a matrix."""
    for number, high in enumerate(widths, start=1):
        last = not first and number == len(widths)
        told.linear(1, wide, high, bias=True, of_data=first and number == 1, last=last)
        if not last:
            told.relu(high)
        wide = high


def _look_up(job: Job, sizes: Dlrm) -> list[Operation]:
    """Rows read and added up; backward they are added to a gradient as large as the tables, which begins as zeros.

    Divided by row, every rank writes sums, and reads gradients, of the samples of all ranks.
    """
    ranks = job.layout.batch_ranks
    divided = recommender_rules.divided(job, sizes)
    each, micro, width = job.batch // ranks, job.accumulate, sizes.width
    sums = len(sizes.rows) * width * (ranks if divided and sizes.tables == "by_row" else 1)
    moved = each * (sizes.ids * (_ID + _F32 * width) + sums * _F32)
    held = -(-sum(sizes.rows) * width // (ranks if divided else 1))
    tables = -(-len(sizes.rows) // ranks) if divided and sizes.tables == "by_table" else len(sizes.rows)
    added = each * sizes.ids * width
    again = moved + _F32 * (added + micro * held)
    dtype = job.recipe.dtype
    return [
        Operation(op="embedding", phase="forward", count=micro * tables, flops=added, bytes=moved, dtype=dtype),
        Operation(op="embedding", phase="backward", count=micro * tables, flops=added, bytes=again, dtype=dtype),
    ]


def _of_divided(job: Job, tables: Sequence[int], whole: bool) -> list[Operation]:
    """Sums over micro-batches, the norm, clipping and the optimizer, of a rank's part of the tables: as if it were
    alone with that many weights. `whole`: it has some of them, not some of each."""
    ranks = job.layout.batch_ranks
    held = Tally(replace(job.recipe, dtype="float32"))
    held.weights(-(-sum(tables) // ranks))
    held.tensors = -(-len(tables) // ranks) if whole else len(tables)
    recipe = replace(job.recipe, dtype="float32", tokens_per_step=job.recipe.tokens_per_step // ranks)
    return held.operations(replace(job, layout=Layout(), recipe=recipe))
