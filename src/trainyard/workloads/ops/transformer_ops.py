"""The arithmetic of one decoder step on one rank, by op class and phase. No torch here.

FLOPs: a multiplication and an addition are two. Bytes: every operand read once and every result written once, as fused
code would; weights once a micro-batch. Ranks of one layout differ in what they do: what stands here is the mean over
them (see group.py).
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
from trainyard.workloads.ops.matrices import AlikeLayers, head, layers, parameters
from trainyard.workloads.ops.sample_group import FLOAT32, SampleGroup, group, joined

__all__ = ["check", "model_flops", "operations", "parameters"]


def check(job: Job) -> None:
    """Raises `BadJob` for what cannot be trained."""
    decoder_rules.check(job)
    trainable.check(job)


def model_flops(job: Job) -> int:
    """FLOPs a step needs over all ranks, for MFU: three times the forward pass, whatever is recomputed or repeated.

    The forward pass is 2 FLOPs a weight of a matrix product and token (of experts those that a token uses; the
    embedding's look-up is none, the head is one) and causal attention by the pairs kept: about 6 N + 6 L T H C FLOPs a
    token (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, counts 12 L T H C: the masked pairs too).
    """
    check(job)
    model, tokens = job.decoder, job.recipe.tokens_per_step
    counted = [(kind.layers, matrix) for kind in layers(model) for matrix in kind.matrices]
    pairs = model.layers * pair_flops(job, tokens, sum(widths(model)))
    return 3 * (_product_flops([*counted, (1, head(model))], tokens) + pairs)


def operations(job: Job) -> list[Operation]:
    """One step of one rank, the mean over ranks. Raises `BadJob` for what cannot be trained."""
    check(job)
    ranks = group(job)
    together = joined(
        [
            *_embedding(job, ranks),
            *_matmul(job, ranks),
            *_attention(job, ranks),
            *_between(job, ranks),
            *_loss(job, ranks),
        ]
    )
    return [*(ranks.mean(operation) for operation in together), *joined(update_ops.operations(job))]


def recomputed(job: Job) -> Iterator[tuple[AlikeLayers, int]]:
    """Each kind of layers, and how many of them are computed again in the backward pass: every n-th of a stage."""
    model, lay, recipe = job.decoder, job.layout, job.recipe
    stages = lay.pp * lay.interleave
    each, rest = divmod(model.layers, stages)
    for kind in layers(model):
        again = 0
        for stage in range(stages if recipe.remat != "none" else 0):
            start = stage * each + min(stage, rest)
            stop = start + each + (stage < rest)
            upto = [-(-max(0, min(bound, stop) - start) // recipe.remat_every) for bound in (kind.first, kind.stop)]
            again += upto[1] - upto[0]
        yield kind, again


def _matmul(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    model = job.decoder
    counted = [(kind.layers, matrix) for kind in layers(model) for matrix in kind.matrices]
    yield from products(job, ranks, "forward", [*counted, (1, head(model))], 1)
    yield from rounding(job, ranks, "forward", counted)
    if job.recipe.remat == "full":
        for kind, again in recomputed(job):
            matrices = kind.matrices[:-1] if kind.ends else kind.matrices
            yield from products(job, ranks, "recompute", [(again, matrix) for matrix in matrices], 1)
            yield from rounding(job, ranks, "recompute", [(again, matrix) for matrix in matrices])
    yield from products(job, ranks, "backward", [*counted, (1, head(model))], 2)
    yield from rounding(job, ranks, "backward", counted)


def _attention(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    yield attention(job, ranks, "forward", job.decoder.layers)
    if job.recipe.remat == "full":
        yield attention(job, ranks, "recompute", sum(again for _, again in recomputed(job)))
    yield attention(job, ranks, "backward", job.decoder.layers)


def _between(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    model = job.decoder
    for phase in ("forward", "recompute", "backward"):
        done = recomputed(job) if phase == "recompute" else ((kind, kind.layers) for kind in layers(model))
        for number, (kind, count) in enumerate(done):
            last = phase != "recompute" and number == 0
            yield from elementwise_ops.norms(model, ranks, phase, count, last=last)
            yield from elementwise_ops.elementwise(model, ranks, phase, kind, count)
            yield from elementwise_ops.routing(model, ranks, phase, kind, count)
            if phase == "backward":
                yield from elementwise_ops.biases(ranks, kind, count)


def _embedding(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    """Rows of tokens, and of places where those are learned; the gradient of a table is as large as the table."""
    model = job.decoder
    learned = model.position == "learned"
    tables = 1 + learned
    rows = model.vocab + (job.recipe.seq_len if learned else 0)
    elements = ranks.tokens * model.width * ranks.between * tables
    moved = elements * (FLOAT32 + words.DTYPES[ranks.dtype])
    table = ranks.micro * rows * model.width * FLOAT32 * ranks.cp
    count = tables * ranks.calls
    yield Operation(op="embedding", phase="forward", count=count, flops=0, bytes=moved)
    yield Operation(op="embedding", phase="backward", count=count, flops=elements, bytes=moved + table)
    if learned:
        yield ranks.pointwise("elementwise", "forward", 1, model.width, 1, 3, ranks.between)


def _loss(job: Job, ranks: SampleGroup) -> Iterator[Operation]:
    """Cross-entropy in float32, with the casts of the logits and of their gradient; each rank of tp has all logits,
    unless they stay divided (`loss_parallel`)."""
    logits = ranks.tokens * job.decoder.vocab * (1 if job.layout.loss_parallel else ranks.tp)
    moved = logits * (FLOAT32 + words.DTYPES[ranks.dtype])
    yield Operation(op="softmax", phase="forward", count=ranks.calls, flops=4 * logits, bytes=moved)
    yield Operation(op="softmax", phase="backward", count=ranks.calls, flops=3 * logits, bytes=moved)
