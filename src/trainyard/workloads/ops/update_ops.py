"""Work of a step on weights and gradients of one rank, as the mean over stages: casts, gradient accumulation, gradient
norm, clipping and optimizer. Needs no torch. A layer group is consecutive layers with the same matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.recipe import Recipe
from trainyard.train.rules.data_parallel_rules import shards
from trainyard.workloads.ops.matrices import layers, parameters
from trainyard.workloads.ops.sample_group import FLOAT32, find_group

_ELEMENTWISE = {"adamw": (14, 7), "sgd": (4, 5), "muon": (5, 5)}
_SGD_WITHOUT_MOMENTUM = (2, 3)
_ITERATIONS = 5
"""Iterations of Muon's orthogonalization."""


def elementwise_update(recipe: Recipe) -> tuple[int, int] | None:
    """(FLOPs, float32 values moved) of the optimizer per weight, for Muon in addition to its matrix products; None for
    an unknown optimizer."""
    if recipe.optimizer == "sgd" and not recipe.state_values:
        return _SGD_WITHOUT_MOMENTUM
    return _ELEMENTWISE.get(recipe.optimizer)


def operations(job: Job) -> Iterator[Operation]:
    """Work of a step on one rank outside the passes: casts of weights and gradients, gradient accumulation, gradient
    norm, clipping, optimizer."""
    layout, recipe, model = job.layout, job.recipe, job.decoder
    parameter_count = parameters(model, recipe.seq_len) // (layout.tp * layout.pp)
    # Sharded over all ranks with other tokens. Experts are split over ep and sharded over the rest: the same size.
    shard = -(-parameter_count // (layout.dp_shard * layout.cp))
    # Weight tensors of a rank: the matrices of its layers, and the embedding and the head.
    calls = 2 + sum(layer_group.layers * len(layer_group.matrices) for layer_group in layers(model)) // layout.pp
    element_bytes = words.DTYPES[find_group(job).dtype]
    if element_bytes < FLOAT32:
        # Sharded weights are cast before they are gathered; gradients of a micro-batch are unsharded.
        cast_weights = shard if shards(layout) else parameter_count
        count = job.accumulate * calls
        for phase, weights in (("forward", cast_weights), ("backward", parameter_count)):
            moved = job.accumulate * weights * (FLOAT32 + element_bytes)
            yield Operation(op="elementwise", phase=phase, count=count, flops=0, bytes=moved)
    accumulations = job.accumulate - 1
    # Reads the sum and the new gradient, and writes the sum.
    moved = 3 * FLOAT32 * accumulations * parameter_count
    yield Operation(
        op="elementwise",
        phase="backward",
        count=accumulations * calls,
        flops=accumulations * parameter_count,
        bytes=moved,
    )
    local_parameters = shard if shards(layout) else parameter_count
    yield Operation(
        op="reduction", phase="other", count=1, flops=2 * local_parameters, bytes=FLOAT32 * local_parameters
    )
    yield Operation(
        op="elementwise", phase="other", count=1, flops=local_parameters, bytes=2 * FLOAT32 * local_parameters
    )
    yield from _optimizer(job, shard)


def _optimizer(job: Job, shard: int) -> Iterator[Operation]:
    """The optimizer's arithmetic; nothing for an unknown optimizer. `shard`: parameters that this rank updates."""
    if update := elementwise_update(job.recipe):
        flops, moved = update
        size = FLOAT32 * shard
        yield Operation(op="optimizer", phase="optimizer", count=1, flops=flops * shard, bytes=moved * size)
    if job.recipe.optimizer == "muon":
        yield from _orthogonal(job)


def _orthogonal(job: Job) -> Iterator[Operation]:
    """Orthogonalization (Newton-Schulz iterations of Muon): every rank processes each matrix of its layers whole; under
    ZeRO-1 its share of them. Of experts a rank processes those that ep gives it, or without ep those that FSDP gives
    it, which shards the stack of matrices by expert.

    An iteration on an (m, n) matrix, m <= n, has three products, of m m n, m m m and m m n multiply-adds. With each
    operand read once they move m n + m m, 2 m m and 2 m n + m m elements; the sum with the matrix moves 3 m n.
    """
    layout, dtype = job.layout, job.recipe.dtype
    expert_ranks = layout.ep
    if layout.ep == 1 and shards(layout):
        expert_ranks = layout.dp_shard * layout.cp
    count = flops = moved_elements = 0
    for layer_group in layers(job.decoder):
        for matrix in layer_group.matrices:
            m, n = sorted((matrix.width_in, matrix.width_out))
            batches = _ITERATIONS * layer_group.layers  # iterations, each on all experts of the rank at once
            iterations = batches * matrix.expert_count // (expert_ranks if matrix.expert_count > 1 else 1)
            count += 3 * batches
            flops += 2 * m * m * (2 * n + m) * iterations
            moved_elements += (6 * m * n + 4 * m * m) * iterations
    share = layout.pp * (layout.dp_shard if layout.zero == 1 else 1)
    dtype = "float32" if dtype == "float32" else "bfloat16"
    size = moved_elements * words.DTYPES[dtype] // share
    yield Operation(
        op="matmul", phase="optimizer", count=-(-count // share), flops=flops // share, bytes=size, dtype=dtype
    )
