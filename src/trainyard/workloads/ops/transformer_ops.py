"""The arithmetic of one decoder step on one rank, by op class and phase. Needs no torch.

FLOPs: a multiply-add counts as two. Bytes: every operand is read once and every result written once, as in fused code;
weights once per micro-batch. Ranks of one layout do different work: these counts are the mean over them (see
sample_group.py).
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
from trainyard.workloads.ops.sample_group import FLOAT32, SampleGroup, group, merged

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
    layer_matrices = [(kind.layers, matrix) for kind in layers(model) for matrix in kind.matrices]
    pairs = model.layers * pair_flops(job, tokens, sum(widths(model)))
    return 3 * (_product_flops([*layer_matrices, (1, head(model))], tokens) + pairs)


def operations(job: Job) -> list[Operation]:
    """Operations of one step on one rank, as the mean over ranks. Raises `BadJob` if the job cannot be trained."""
    check(job)
    ranks = group(job)
    group_operations = merged(
        [
            *_embedding(job, ranks),
            *_matmul(job, ranks),
            *_attention(job, ranks),
            *_between(job, ranks),
            *_loss(job, ranks),
        ]
    )
    return [*(ranks.mean(operation) for operation in group_operations), *merged(update_ops.operations(job))]


def recomputed(job: Job) -> Iterator[tuple[LayerGroup, int]]:
    """Each layer group with its number of recomputed layers: every `activation_checkpoint_every`-th of a stage."""
    model, layout, recipe = job.decoder, job.layout, job.recipe
    stages = layout.pp * layout.interleave
    per_stage, rest = divmod(model.layers, stages)
    for kind in layers(model):
        recomputed_layers = 0
        for stage in range(stages if recipe.activation_checkpoint != "none" else 0):
            start = stage * per_stage + min(stage, rest)
            stop = start + per_stage + (stage < rest)
            upto = [
                -(-max(0, min(bound, stop) - start) // recipe.activation_checkpoint_every)
                for bound in (kind.first, kind.stop)
            ]
            recomputed_layers += upto[1] - upto[0]
        yield kind, recomputed_layers


def _matmul(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    """Matrix products of layers and head, forward, recomputed and backward (two per product), with float8's
    rounding."""
    model = job.decoder
    layer_matrices = [(kind.layers, matrix) for kind in layers(model) for matrix in kind.matrices]
    yield from products(job, ranks, "forward", [*layer_matrices, (1, head(model))], 1)
    yield from rounding(job, ranks, "forward", layer_matrices)
    if job.recipe.activation_checkpoint == "full":
        for kind, count in recomputed(job):
            matrices = kind.matrices[:-1] if kind.ends else kind.matrices
            yield from products(job, ranks, "recompute", [(count, matrix) for matrix in matrices], 1)
            yield from rounding(job, ranks, "recompute", [(count, matrix) for matrix in matrices])
    yield from products(job, ranks, "backward", [*layer_matrices, (1, head(model))], 2)
    yield from rounding(job, ranks, "backward", layer_matrices)


def _attention(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    yield attention(job, ranks, "forward", job.decoder.layers)
    if job.recipe.activation_checkpoint == "full":
        yield attention(job, ranks, "recompute", sum(count for _, count in recomputed(job)))
    yield attention(job, ranks, "backward", job.decoder.layers)


def _between(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    """Operations between the matrix products of the layers: norms, elementwise operations, routing of experts,
    gradients of biases."""
    model = job.decoder
    for phase in ("forward", "recompute", "backward"):
        layer_counts = recomputed(job) if phase == "recompute" else ((kind, kind.layers) for kind in layers(model))
        for number, (kind, count) in enumerate(layer_counts):
            last = phase != "recompute" and number == 0
            yield from elementwise_ops.norms(model, ranks, phase, count, last=last)
            yield from elementwise_ops.elementwise(model, ranks, phase, kind, count)
            yield from elementwise_ops.routing(model, ranks, phase, kind, count)
            if phase == "backward":
                yield from elementwise_ops.biases(ranks, kind, count)


def _embedding(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    """Lookups of tokens and of learned positions. The gradient of a table is as large as the table."""
    model = job.decoder
    learned = model.position == "learned"
    tables = 1 + learned
    rows = model.vocab + (job.recipe.seq_len if learned else 0)
    elements = ranks.tokens * model.hidden_size * ranks.between * tables
    moved = elements * (FLOAT32 + words.DTYPES[ranks.dtype])
    gradient_bytes = ranks.micro * rows * model.hidden_size * FLOAT32 * ranks.cp
    count = tables * ranks.calls
    yield Operation(op="embedding", phase="forward", count=count, flops=0, bytes=moved)
    yield Operation(op="embedding", phase="backward", count=count, flops=elements, bytes=moved + gradient_bytes)
    if learned:
        yield ranks.pointwise(
            "elementwise", "forward", calls=1, width=model.hidden_size, flops=1, moved=3, times=ranks.between
        )


def _loss(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    """Cross-entropy in float32, with the casts of the logits and of their gradient. Each tp rank has all logits, unless
    they stay sharded (`loss_parallel`)."""
    logits = ranks.tokens * job.decoder.vocab * (1 if job.layout.loss_parallel else ranks.tp)
    moved = logits * (FLOAT32 + words.DTYPES[ranks.dtype])
    yield Operation(op="softmax", phase="forward", count=ranks.calls, flops=4 * logits, bytes=moved)
    yield Operation(op="softmax", phase="backward", count=ranks.calls, flops=3 * logits, bytes=moved)
