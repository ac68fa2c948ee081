"""The arithmetic of one transformer step on one rank, by op class and phase. No torch here.

FLOPs: a multiplication and an addition are two. Matrix products are exact. Causal attention counts the pairs a
causal mask keeps, T (T + 1) / 2 a head: twice 2 C FLOPs a pair forward, five times backward (a fused kernel
computes the scores again: Dao 2023, arXiv:2307.08691, section 2). The other classes count a few FLOPs an element.
Bytes: every operand read once and every result written once, as fused code would; weights once a micro-batch.

Shapes: T tokens a sequence, N tokens a rank and step, M micro-batches, D width, F gated width, H query heads,
K key/value heads, C head width, V vocabulary.
"""

from __future__ import annotations

import msgspec

from trainyard import words
from trainyard.cost import Operation
from trainyard.job import Job, Model
from trainyard.train import layout
from trainyard.train.rules import decoder

_F32 = words.DTYPES["float32"]


def parameters(model: Model) -> int:
    """Of the whole model, norms and embedding included."""
    norms = (2 * model.layers + 1) * model.width
    linear = sum(wide * high for wide, high in _head(model) + model.layers * (_attention_linear(model) + _mlp(model)))
    return linear + norms + model.vocab * model.width


def check(job: Job) -> None:
    """Raises `BadJob` for what cannot be trained."""
    decoder.check(job)
    layout.check(job)


def model_flops(job: Job) -> int:
    """FLOPs a step needs over all ranks, for MFU: three times the forward pass, whatever is recomputed.

    The forward pass is 2 FLOPs a weight of a matrix product and token (the embedding's look-up is none, the head is
    one) and causal attention by the pairs kept: about 6 N + 6 L T H C FLOPs a token (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B, counts 12 L T H C: the masked pairs too).
    """
    check(job)
    model, tokens = job.decoder, job.recipe.tokens_per_step
    weights = parameters(model) - model.vocab * model.width - (2 * model.layers + 1) * model.width
    return 3 * (2 * weights * tokens + model.layers * _pair_flops(job, tokens) * 2)


def operations(job: Job) -> list[Operation]:
    """One step of one rank, in the order of the forward pass. Raises `BadJob` for what cannot be trained."""
    check(job)
    return [
        *_embedding(job),
        *_matmul(job),
        *_attention(job),
        *_norm(job),
        *_elementwise(job),
        *_loss(job),
        *_update(job),
    ]


def _tokens(job: Job) -> int:
    """A rank's own in one step."""
    return job.accumulate * job.recipe.microbatch * job.recipe.seq_len


def _element(job: Job) -> int:
    return words.DTYPES[job.recipe.dtype]


def _attention_linear(model: Model) -> list[tuple[int, int]]:
    """(width in, width out) of a layer's products around attention: q, k, v, out."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return [(model.width, q), (model.width, kv), (model.width, kv), (q, model.width)]


def _mlp(model: Model) -> list[tuple[int, int]]:
    """Gate, up, down."""
    return [(model.width, model.ffn), (model.width, model.ffn), (model.ffn, model.width)]


def _head(model: Model) -> list[tuple[int, int]]:
    return [(model.width, model.vocab)]


def _pair_flops(job: Job, tokens: int) -> int:
    """Of one product over all query-key pairs that the mask keeps, in one layer."""
    sequences = tokens // job.recipe.seq_len
    pairs = job.recipe.seq_len * (job.recipe.seq_len + 1) // 2
    return 2 * sequences * pairs * job.decoder.heads * job.decoder.head_dim


def _recomputed(job: Job, operation: Operation) -> list[Operation]:
    """A forward operation of the blocks, done again in the backward pass where the recipe says so."""
    if job.recipe.remat == "none" or not operation.count:
        return []
    return [msgspec.structs.replace(operation, phase="recompute")]


def _matmul(job: Job) -> list[Operation]:
    model = job.decoder
    layer = _attention_linear(model) + _mlp(model)
    forward = _products(job, "forward", model.layers * layer + _head(model), 1)
    backward = _products(job, "backward", model.layers * layer + _head(model), 2)
    # Recomputation stops before the last product of a block: nothing backward needs its result.
    again = _products(job, "forward", model.layers * layer[:-1], 1)
    return [forward, *_recomputed(job, again), backward]


def _products(job: Job, phase: str, shapes: list[tuple[int, int]], times: int) -> Operation:
    tokens, micro = _tokens(job), job.accumulate
    return Operation(
        op="matmul",
        phase=phase,
        count=times * micro * len(shapes),
        flops=times * sum(2 * tokens * wide * high for wide, high in shapes),
        bytes=times * _element(job) * sum(tokens * (wide + high) + micro * wide * high for wide, high in shapes),
        dtype=job.recipe.dtype,
    )


def _attention(job: Job) -> list[Operation]:
    model, tokens, micro = job.decoder, _tokens(job), job.accumulate
    width = model.head_dim * _element(job)
    sums = tokens * model.heads * _F32  # the log-sum-exp of each row of scores, kept for the backward pass
    product = model.layers * _pair_flops(job, tokens)
    forward = Operation(
        op="attention",
        phase="forward",
        count=model.layers * micro,
        flops=2 * product,
        bytes=model.layers * (tokens * (2 * model.heads + 2 * model.kv_heads) * width + sums),
        dtype=job.recipe.dtype,
    )
    backward = Operation(
        op="attention",
        phase="backward",
        count=model.layers * micro,
        flops=5 * product,
        bytes=model.layers * (tokens * (4 * model.heads + 4 * model.kv_heads) * width + sums),
        dtype=job.recipe.dtype,
    )
    return [forward, *_recomputed(job, forward), backward]


def _norm(job: Job) -> list[Operation]:
    per_layer = 2 * job.decoder.layers
    again = _pointwise(job, "norm", "forward", per_layer, job.decoder.width, flops=4, moved=2)
    return [
        _pointwise(job, "norm", "forward", per_layer + 1, job.decoder.width, flops=4, moved=2),
        *_recomputed(job, again),
        _pointwise(job, "norm", "backward", per_layer + 1, job.decoder.width, flops=8, moved=3),
    ]


def _pointwise(job: Job, op: str, phase: str, calls: int, width: int, flops: int, moved: int) -> Operation:
    """`calls` a micro-batch, each over `width` elements a token, with `flops` and `moved` elements each."""
    elements = calls * _tokens(job) * width
    return Operation(
        op=op,
        phase=phase,
        count=calls * job.accumulate,
        flops=flops * elements,
        bytes=moved * elements * _element(job),
        dtype=job.recipe.dtype,
    )


def _elementwise(job: Job) -> list[Operation]:
    """Rotary turns, SwiGLU, residual sums; casts of weights and of their gradients; summing up micro-batches."""
    model = job.decoder
    turned = (model.heads + model.kv_heads) * model.head_dim
    forward = _sum(
        _pointwise(job, "elementwise", "forward", model.layers, turned, flops=3, moved=2),
        _pointwise(job, "elementwise", "forward", model.layers, model.ffn, flops=5, moved=3),
        _pointwise(job, "elementwise", "forward", 2 * model.layers, model.width, flops=1, moved=3),
    )
    backward = _sum(
        _pointwise(job, "elementwise", "backward", model.layers, turned, flops=3, moved=2),
        _pointwise(job, "elementwise", "backward", model.layers, model.ffn, flops=9, moved=5),
        _pointwise(job, "elementwise", "backward", 2 * model.layers, model.width, flops=1, moved=3),
    )
    casts = job.accumulate if job.recipe.dtype != "float32" else 0
    weights, cast_bytes = parameters(model), _F32 + _element(job)
    cast = _per_weight(job, "forward", casts, weights, flops=0, moved=cast_bytes)
    cast_back = _per_weight(job, "backward", casts, weights, flops=0, moved=cast_bytes)
    gather = _per_weight(job, "backward", job.accumulate - 1, weights, flops=1, moved=3 * _F32)
    return [_sum(forward, cast), *_recomputed(job, forward), _sum(backward, cast_back, gather)]


def _per_weight(job: Job, phase: str, times: int, weights: int, flops: int, moved: int) -> Operation:
    calls = times * (2 + 7 * job.decoder.layers)
    return Operation(
        op="elementwise", phase=phase, count=calls, flops=times * flops * weights, bytes=times * moved * weights
    )


def _sum(*parts: Operation) -> Operation:
    return Operation(
        op=parts[0].op,
        phase=parts[0].phase,
        count=sum(part.count for part in parts),
        flops=sum(part.flops for part in parts),
        bytes=sum(part.bytes for part in parts),
        dtype=parts[0].dtype,
    )


def _embedding(job: Job) -> list[Operation]:
    model, elements = job.decoder, _tokens(job) * job.decoder.width
    table = job.accumulate * model.vocab * model.width * _F32
    moved = elements * (_F32 + _element(job))
    return [
        Operation(op="embedding", phase="forward", count=job.accumulate, flops=0, bytes=moved),
        Operation(op="embedding", phase="backward", count=job.accumulate, flops=elements, bytes=moved + table),
    ]


def _loss(job: Job) -> list[Operation]:
    """Cross-entropy in float32, with the casts of the logits and of their gradient."""
    logits = _tokens(job) * job.decoder.vocab
    moved = logits * (_F32 + _element(job))
    return [
        Operation(op="softmax", phase="forward", count=job.accumulate, flops=4 * logits, bytes=moved),
        Operation(op="softmax", phase="backward", count=job.accumulate, flops=3 * logits, bytes=moved),
    ]


def _update(job: Job) -> list[Operation]:
    """The gradient norm, clipping by it, and AdamW, over this rank's shard."""
    mine = -(-parameters(job.decoder) // job.layout.dp_shard)
    return [
        Operation(op="reduction", phase="other", count=1, flops=2 * mine, bytes=_F32 * mine),
        Operation(op="elementwise", phase="other", count=1, flops=mine, bytes=2 * _F32 * mine),
        Operation(op="optimizer", phase="optimizer", count=1, flops=14 * mine, bytes=7 * _F32 * mine),
    ]
