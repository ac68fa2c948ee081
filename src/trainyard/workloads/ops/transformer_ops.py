"""The arithmetic of one decoder step on one rank, by op class and phase. Needs no torch.

FLOPs: a multiply-add counts as two. Bytes: every operand is read once and every result written once, as in fused code;
weights once per micro-batch. Ranks of one layout do different work: these counts are the mean over them (see
sample_group.py). A sample group is the ranks that train on the same samples (tp x cp x pp); its operations are summed
over them. A layer group is consecutive layers with the same matrices, such as the dense layers.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job
from trainyard.train.rules import decoder_rules, trainable
from trainyard.workloads.ops import elementwise_ops, update_ops
from trainyard.workloads.ops.matmul_ops import attention, pair_flops, products, rounding, widths
from trainyard.workloads.ops.matmul_ops import model_flops as _product_flops
from trainyard.workloads.ops.matrices import LayerGroup, head, layers, parameters
from trainyard.workloads.ops.sample_group import FLOAT32, SampleGroup, find_group, merged

__all__ = ["check", "model_flops", "operations", "parameters"]


def check(job: Job) -> None:
    """Raises `BadJob` if the job cannot be trained."""
    decoder_rules.check(job)
    trainable.check(job)


def model_flops(job: Job) -> int:
    """Model FLOPs of a step over all ranks, for MFU: three times the forward pass, without recomputed or repeated work.

    The forward pass has 2 FLOPs per token and weight of a matrix product (of the experts, those that a token uses; the
    head counts, the embedding lookup does not), plus causal attention over the unmasked pairs: about 6 N + 6 L T H C
    FLOPs per token for a whole step (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, counts 12 L T H C, which
    includes the masked pairs).
    """
    check(job)
    model, tokens = job.decoder, job.recipe.tokens_per_step
    layer_matrices = [(layer_group.layers, matrix) for layer_group in layers(model) for matrix in layer_group.matrices]
    pairs = model.layers * pair_flops(job, tokens, sum(widths(model)))
    return 3 * (_product_flops([*layer_matrices, (1, head(model))], tokens) + pairs)


def operations(job: Job) -> list[Operation]:
    """Operations of one step on one rank, as the mean over ranks. Raises `BadJob` if the job cannot be trained."""
    check(job)
    group = find_group(job)
    group_operations = merged(
        [
            *_embedding(job, group),
            *_matmul(job, group),
            *_attention(job, group),
            *_between(job, group),
            *_loss(job, group),
        ]
    )
    return [*(group.mean(operation) for operation in group_operations), *merged(update_ops.operations(job))]


def recomputed(job: Job) -> Iterator[tuple[LayerGroup, int]]:
    """Each layer group with its number of recomputed layers: of a stage, the first and then every
    `activation_checkpoint_every`-th."""
    model, layout, recipe = job.decoder, job.layout, job.recipe
    stages = layout.pp * layout.interleave
    per_stage, rest = divmod(model.layers, stages)  # the first `rest` stages have one layer more
    for layer_group in layers(model):
        recomputed_layers = 0
        for stage in range(stages if recipe.activation_checkpoint != "none" else 0):
            start = stage * per_stage + min(stage, rest)
            stop = start + per_stage + (stage < rest)
            # Recomputed layers of the stage before the first layer of the group, and before its end.
            recomputed_before = [
                -(-max(0, min(bound, stop) - start) // recipe.activation_checkpoint_every)
                for bound in (layer_group.first, layer_group.stop)
            ]
            recomputed_layers += recomputed_before[1] - recomputed_before[0]
        yield layer_group, recomputed_layers


def _matmul(job: Job, group: SampleGroup) -> Iterator[Operation]:
    """Matrix products of layers and head, forward, recomputed and backward (two per product), with float8's
    rounding."""
    model = job.decoder
    layer_matrices = [(layer_group.layers, matrix) for layer_group in layers(model) for matrix in layer_group.matrices]
    yield from products(job, group, "forward", [*layer_matrices, (1, head(model))], products_per_matrix=1)
    yield from rounding(job, group, "forward", layer_matrices)
    if job.recipe.activation_checkpoint == "full":
        for layer_group, count in recomputed(job):
            matrices = layer_group.matrices[:-1] if layer_group.skips_last_product else layer_group.matrices
            yield from products(
                job, group, "recompute", [(count, matrix) for matrix in matrices], products_per_matrix=1
            )
            yield from rounding(job, group, "recompute", [(count, matrix) for matrix in matrices])
    yield from products(job, group, "backward", [*layer_matrices, (1, head(model))], products_per_matrix=2)
    yield from rounding(job, group, "backward", layer_matrices)


def _attention(job: Job, group: SampleGroup) -> Iterator[Operation]:
    """Attention of all layers, forward, recomputed (with full activation checkpointing) and backward."""
    yield attention(job, group, "forward", job.decoder.layers)
    if job.recipe.activation_checkpoint == "full":
        yield attention(job, group, "recompute", sum(count for _, count in recomputed(job)))
    yield attention(job, group, "backward", job.decoder.layers)


def _between(job: Job, group: SampleGroup) -> Iterator[Operation]:
    """Operations between the matrix products of the layers, in all phases: norms, elementwise operations, routing of
    experts, gradients of biases."""
    model = job.decoder
    for phase in ("forward", "recompute", "backward"):
        layer_counts = (
            recomputed(job)
            if phase == "recompute"
            else ((layer_group, layer_group.layers) for layer_group in layers(model))
        )
        for number, (layer_group, count) in enumerate(layer_counts):
            last = phase != "recompute" and number == 0  # the final norm is counted once
            yield from elementwise_ops.norms(model, group, phase, count, last=last)
            yield from elementwise_ops.elementwise(model, group, phase, layer_group, count)
            yield from elementwise_ops.routing(model, group, phase, layer_group, count)
            if phase == "backward":
                yield from elementwise_ops.biases(group, layer_group, count)


def _embedding(job: Job, group: SampleGroup) -> Iterator[Operation]:
    """Lookups of tokens and of learned positions, and the sum of both. The gradient of a table is as large as the
    table, whatever the number of tokens; each micro-batch writes it."""
    model = job.decoder
    learned = model.position == "learned"
    tables = 1 + learned
    rows = model.vocab + (job.recipe.seq_len if learned else 0)
    elements = group.tokens * model.hidden_size * group.repeating_ranks * tables
    moved = elements * (FLOAT32 + words.DTYPES[group.dtype])
    gradient_bytes = group.micro_batches * rows * model.hidden_size * FLOAT32 * group.cp
    count = tables * group.calls_per_layer
    yield Operation(op="embedding", phase="forward", count=count, flops=0, bytes=moved)
    yield Operation(op="embedding", phase="backward", count=count, flops=elements, bytes=moved + gradient_bytes)
    if learned:
        yield group.pointwise(
            "elementwise", "forward", calls=1, width=model.hidden_size, flops=1, moved=3, repeats=group.repeating_ranks
        )


def _loss(job: Job, group: SampleGroup) -> Iterator[Operation]:
    """Cross-entropy in float32, with the casts of the logits and of their gradient. Each tp rank has all logits, unless
    they stay sharded (`loss_parallel`)."""
    logits = group.tokens * job.decoder.vocab * (1 if job.layout.loss_parallel else group.tp)
    moved = logits * (FLOAT32 + words.DTYPES[group.dtype])
    yield Operation(op="softmax", phase="forward", count=group.calls_per_layer, flops=4 * logits, bytes=moved)
    yield Operation(op="softmax", phase="backward", count=group.calls_per_layer, flops=3 * logits, bytes=moved)
