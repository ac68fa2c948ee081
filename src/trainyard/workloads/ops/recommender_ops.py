"""Parameters, FLOPs and bytes of the recommender, layer by layer. Needs no torch.

For sharded tables, the mean over the ranks: with whole tables on each rank, their work differs. A recommender (DLRM)
has embedding tables (`sizes.rows`: rows of each; `sizes.width`: channels of a row), an MLP for the dense features,
cross layers and an MLP at the top. A `Tally` adds up layers in forward order and counts their backward pass too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.recipe import Recipe
from trainyard.train.recommender import recommender_rules
from trainyard.train.recommender.clicks import expected_distinct
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules import sample_rules, trainable
from trainyard.train.sizes import convert
from trainyard.workloads.ops.tally import Tally

AXES = ("dp_replicate", "dp_shard")
_FLOAT32_BYTES = words.DTYPES["float32"]
_ID_BYTES = 8
"""Bytes of an id."""


def check(job: Job) -> Dlrm:
    """The job's sizes. Raises `BadJob` if it cannot be trained."""
    sizes = convert(job, Dlrm)
    sample_rules.check(job)
    trainable.check(job, AXES)
    recommender_rules.check(job, sizes)
    return sizes


def operations(job: Job) -> list[Operation]:
    """Operations of one step on one rank. Raises `BadJob` if the job cannot be trained."""
    sizes = check(job)
    ops = tally(sizes, job.recipe)
    if not (recommender_rules.shards_tables(job, sizes) or job.recipe.updates_rows):
        return [*ops.operations(job), *_look_up(job, sizes)]
    # The tables are taken out of the rank's weights; the work on its part of them is added.
    table_elements = [rows * sizes.width for rows in sizes.rows]
    ops.local_parameters -= sum(table_elements)
    ops.tensors -= len(table_elements)
    if job.recipe.updates_rows:
        return [*ops.operations(job), *_look_up(job, sizes), *_update_rows(job, sizes)]
    update = _split_tables(job, table_elements, by_table=sizes.tables == "by_table")
    return [*ops.operations(job), *_look_up(job, sizes), *update]


def model_flops(job: Job) -> int:
    """Model FLOPs of a step over all ranks, for MFU: the matrix products. Raises `BadJob` like `operations`."""
    return tally(check(job), job.recipe).model_flops(job)


def weights(job: Job) -> int:
    """Parameters of one rank before data parallelism shards them; the mean over ranks if tables are sharded.

    Raises `BadJob` like `operations`.
    """
    sizes = check(job)
    all_parameters, table_parameters = tally(sizes, job.recipe).parameters, sum(sizes.rows) * sizes.width
    return all_parameters - table_parameters + recommender_rules.own_tables(job, sizes).weights


def tally(sizes: Dlrm, recipe: Recipe) -> Tally:
    """Tallies all operations of a sample except the embedding lookups, with the weights of the tables.

    `sizes.features`: the concatenated channels of all tables and of the dense features. A cross layer has two matrices,
    to `cross_rank` channels and back. Of `pointwise`: FLOPs, and values read and written (`moved`), per element.
    """
    ops, width_in = Tally(recipe), sizes.features
    ops.weights(*[rows * sizes.width for rows in sizes.rows])
    with ops.block():
        _mlp(ops, sizes.dense, sizes.bottom, first=True)
    ops.pointwise(width_in, flops=0, moved=2, back_flops=0, back_moved=2)  # concatenation
    for _ in range(sizes.cross_layers):
        with ops.block():
            ops.linear(rows=1, width_in=width_in, width_out=sizes.cross_rank)
            ops.linear(rows=1, width_in=sizes.cross_rank, width_out=width_in, bias=True)
            ops.pointwise(width_in, flops=2, moved=4, back_flops=4, back_moved=7)
    with ops.block():
        _mlp(ops, width_in, sizes.top, first=False)
    ops.loss(elements=1, op="elementwise")
    return ops


def _mlp(ops: Tally, width_in: int, widths: Sequence[int], first: bool) -> None:
    """Tallies an MLP with the output widths `widths`. The `first` one takes data, which needs no gradient, and ends
    with a ReLU; the other ends with a linear layer."""
    for number, width in enumerate(widths, start=1):
        last = not first and number == len(widths)
        ops.linear(1, width_in, width, bias=True, input_is_data=first and number == 1, last=last)
        if not last:
            ops.relu(width)
        width_in = width


def _look_up(job: Job, sizes: Dlrm) -> list[Operation]:
    """Forward and backward embedding lookups of a rank, each summed over the step; `count` has a call per table and
    micro-batch. Rows of a table are read and summed per sample; backward adds to a gradient as large as the tables,
    which every micro-batch first sets to zero, or with gradients of rows writes one per id.

    A rank has all tables, or its share if they are sharded. Sharded by row, it writes partial sums for the samples of
    all ranks; sharded by table, it has all rows of its tables.
    """
    ranks = job.layout.batch_ranks
    shards_tables = recommender_rules.shards_tables(job, sizes)
    micro_batches, width = job.accumulate, sizes.width
    samples = micro_batches * job.recipe.micro_batch_size
    # Values that the lookups write per sample of the rank.
    output_values = len(sizes.rows) * width * (ranks if shards_tables and sizes.tables == "by_row" else 1)
    forward_bytes = samples * (sizes.ids * (_ID_BYTES + _FLOAT32_BYTES * width) + output_values * _FLOAT32_BYTES)
    table_elements = -(-sum(sizes.rows) * width // (ranks if shards_tables else 1))
    table_count = -(-len(sizes.rows) // ranks) if shards_tables and sizes.tables == "by_table" else len(sizes.rows)
    added_values = samples * sizes.ids * width  # each id of a sample adds a row to a sum
    dense_values = 0 if job.recipe.updates_rows else added_values + micro_batches * table_elements
    backward_bytes = forward_bytes + _FLOAT32_BYTES * dense_values
    dtype = job.recipe.dtype
    return [
        Operation(
            op="embedding",
            phase="forward",
            count=micro_batches * table_count,
            flops=added_values,
            bytes=forward_bytes,
            dtype=dtype,
        ),
        Operation(
            op="embedding",
            phase="backward",
            count=micro_batches * table_count,
            flops=added_values,
            bytes=backward_bytes,
            dtype=dtype,
        ),
    ]


def _update_rows(job: Job, sizes: Dlrm) -> list[Operation]:
    """Row-wise AdaGrad on a rank: the sums of the gradients of repeated ids, over the replicas too, their norm and
    clipping, and the update of each distinct row and its accumulator."""
    width, ranks = sizes.width, job.layout.batch_ranks
    row_bytes = _ID_BYTES + _FLOAT32_BYTES * width
    ids = job.batch * sizes.ids // ranks  # that a rank looks up or, if tables are sharded, has the rows of
    rows = _distinct_rows(sizes, job.batch)
    summed = ids + rows  # gradients read and written
    if recommender_rules.shards_tables(job, sizes):
        rows = -(-rows // ranks)
        summed = ids + rows
    elif ranks > 1:
        own_rows = _distinct_rows(sizes, job.batch // ranks)
        summed += own_rows * (1 + ranks)  # written, then gathered and read
    values = rows * width

    def operation(op: str, phase: str, flops: int, moved: int) -> Operation:
        return Operation(op=op, phase=phase, count=1, flops=flops, bytes=moved)

    return [
        operation("embedding", "backward", 0, summed * row_bytes),
        operation("reduction", "other", 2 * values, _FLOAT32_BYTES * values),
        operation("elementwise", "other", values, 2 * _FLOAT32_BYTES * values),
        # Reads gradient, weights and accumulator, and writes the last two.
        operation(
            "optimizer", "optimizer", 5 * values + 3 * rows, rows * (row_bytes + 2 * _FLOAT32_BYTES * (width + 1))
        ),
    ]


def _distinct_rows(sizes: Dlrm, samples: int) -> int:
    """The expected number of distinct rows that `samples` samples look up, over all tables."""
    return round(sum(expected_distinct(rows, sizes.skew, samples * hots) for rows, hots in zip(sizes.rows, sizes.hots)))


def _split_tables(job: Job, table_elements: Sequence[int], by_table: bool) -> list[Operation]:
    """Gradient accumulation, norm, clipping and optimizer for a rank's part of the tables, as for a single-rank model
    of that size. `table_elements`: of each table. `by_table`: a rank has whole tables, not a part of each."""
    ranks = job.layout.batch_ranks
    ops = Tally(replace(job.recipe, dtype="float32"))
    ops.weights(-(-sum(table_elements) // ranks))
    ops.tensors = -(-len(table_elements) // ranks) if by_table else len(table_elements)
    # A job on one rank with this rank's samples has as many micro-batches.
    recipe = replace(job.recipe, dtype="float32", tokens_per_step=job.recipe.tokens_per_step // ranks)
    return ops.operations(replace(job, layout=Layout(), recipe=recipe))
