"""What a step does to weights and their gradients, on one rank, the mean over stages: casts, sums over micro-batches,
the norm, clipping, the optimizer. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.train.rules.data_parallel_rules import shards
from trainyard.workloads.ops.matrices import layers, parameters
from trainyard.workloads.ops.sample_group import FLOAT32, group

ELEMENTWISE = {"adamw": (14, 7), "sgd": (4, 5), "muon": (5, 5)}
"""FLOPs and float32 values moved a weight; of Muon beside its products."""
_ITERATIONS = 5
"""Of Muon's orthogonalisation."""


def operations(job: Job) -> Iterator[Operation]:
    lay, recipe, model = job.layout, job.recipe, job.decoder
    whole = parameters(model, recipe.seq_len) // (lay.tp * lay.pp)
    # Sharded over the ranks with other tokens: experts over ep of them and over the others, which comes to the same.
    mine = -(-whole // (lay.dp_shard * lay.cp))
    calls = 2 + sum(kind.layers * len(kind.matrices) for kind in layers(model)) // lay.pp
    element = words.DTYPES[group(job).dtype]
    if element < FLOAT32:
        # Sharded weights are cast before they are gathered; gradients of a micro-batch are whole.
        cast = mine if shards(lay) else whole
        count = job.accumulate * calls
        for phase, weights in (("forward", cast), ("backward", whole)):
            moved = job.accumulate * weights * (FLOAT32 + element)
            yield Operation(op="elementwise", phase=phase, count=count, flops=0, bytes=moved)
    sums = job.accumulate - 1
    moved = 3 * FLOAT32 * sums * whole
    yield Operation(op="elementwise", phase="backward", count=sums * calls, flops=sums * whole, bytes=moved)
    here = mine if shards(lay) else whole
    yield Operation(op="reduction", phase="other", count=1, flops=2 * here, bytes=FLOAT32 * here)
    yield Operation(op="elementwise", phase="other", count=1, flops=here, bytes=2 * FLOAT32 * here)
    yield from _optimizer(job, mine)


def _optimizer(job: Job, mine: int) -> Iterator[Operation]:
    """Of an optimizer that is not known here, nothing: its arithmetic is not guessed."""
    name = job.recipe.optimizer
    if name in ELEMENTWISE:
        flops, moved = ELEMENTWISE[name]
        size = FLOAT32 * mine
        yield Operation(op="optimizer", phase="optimizer", count=1, flops=flops * mine, bytes=moved * size)
    if name == "muon":
        yield from _orthogonal(job)


def _orthogonal(job: Job) -> Iterator[Operation]:
    """Every rank makes every matrix of its layers orthogonal, whole; under ZeRO-1 each its share of them. A step of the
    iteration on (m, n), m <= n, is three products: of m m n, m m m and m m n multiplications and additions."""
    lay, dtype = job.layout, job.recipe.dtype
    count = flops = moved = 0
    for kind in layers(job.decoder):
        for matrix in kind.matrices:
            if matrix.copies == 1:
                m, n = sorted((matrix.wide, matrix.high))
                count += 3 * _ITERATIONS * kind.layers
                flops += 2 * m * m * (2 * n + m) * _ITERATIONS * kind.layers
                moved += (6 * m * n + 4 * m * m) * _ITERATIONS * kind.layers
    share = lay.pp * (lay.dp_shard if lay.zero == 1 else 1)
    dtype = "float32" if dtype == "float32" else "bfloat16"
    size = moved * words.DTYPES[dtype] // share
    yield Operation(
        op="matmul", phase="optimizer", count=-(-count // share), flops=flops // share, bytes=size, dtype=dtype
    )
