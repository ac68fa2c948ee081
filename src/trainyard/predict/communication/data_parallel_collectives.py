"""Collectives of data parallelism in a step of trainyard's own trainer: how many of each kind, on which axis, and the
bytes of their tensors.

FSDP2 communicates by unit (`train/parallel/data_parallelism.py`): the embedding, each block, the last norm with the
head. DDP all-reduces buckets of gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from trainyard import words
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.plan import Collective

_FLOAT32 = words.DTYPES["float32"]
_INT64_BYTES = 8
_FIRST_BUCKET_BYTES = 2**20
"""DDP's first bucket is this large, so that its all-reduce starts early (torch's `_DEFAULT_FIRST_BUCKET_BYTES`)."""
Shape = tuple[int, ...]
Calls = Counter[tuple[str, str, int]]
"""(kind, axis, bytes of the larger tensor of the call) -> number of calls."""


class Unit(NamedTuple):
    """An FSDP unit: the shapes of its parameters, and whether its weights are freed after the forward pass."""

    shapes: Sequence[Shape]
    reshards: bool


def predict_collectives(job: Job) -> tuple[Collective, ...]:
    """The collectives of one step on a rank. Empty if they are not predicted: for models other than decoders, and
    layouts with tp, pp, ep or ZeRO-1; those of cp's attention are left out."""
    layout = job.layout
    is_predicted = job.model is not None and not job.sizes and layout.tp == layout.pp == layout.ep == 1
    if not is_predicted or layout.ranks == 1 or (layout.zero == 1 and layout.dp_shard > 1):
        return ()
    calls = _fsdp_calls(job) if layout.dp_shard * layout.cp > 1 else _ddp_calls(job)
    calls["all_reduce", "world", 2 * _FLOAT32] += 1  # the loss, and the number of ranks whose norm is not finite
    for axis in _token_axes(layout) if job.decoder.experts else ():
        expert_layers = max(job.decoder.layers - job.decoder.dense_layers, 0)
        calls["all_reduce", axis, _INT64_BYTES * expert_layers * job.decoder.experts] += 1  # tokens per expert
    counts, total_bytes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for (kind, axis, size), count in calls.items():
        counts[kind, axis] += count
        total_bytes[kind, axis] += count * size
    return tuple(
        Collective(kind=kind, axis=axis, calls=count, bytes=total_bytes[kind, axis])
        for (kind, axis), count in counts.items()
    )


def _token_axes(layout: Layout) -> list[str]:
    """The axes whose ranks have different tokens."""
    sizes = {"dp_replicate": layout.dp_replicate, _shard_axis(layout): layout.dp_shard * layout.cp}
    return [axis for axis, size in sizes.items() if size > 1]


def _shard_axis(layout: Layout) -> str:
    """The name of the axis over which FSDP shards."""
    return "dp_shard_cp" if layout.cp > 1 else "dp_shard"


def _fsdp_calls(job: Job) -> Calls:
    """The calls of FSDP2: each unit gathers its weights once or twice per micro-batch and scatters its gradients once;
    replicas all-reduce the shards of the gradients after the last micro-batch. The gradient norm is summed over the
    shards."""
    layout, recipe, calls = job.layout, job.recipe, Counter[tuple[str, str, int]]()
    axis = _shard_axis(layout)
    shards = layout.dp_shard * layout.cp
    value_bytes = words.DTYPES["bfloat16" if recipe.dtype == "float8" else recipe.dtype]
    for unit in fsdp_units(job.decoder, layout, recipe.seq_len):
        values = sum(_padded(shape, shards) for shape in unit.shapes)
        calls["all_gather", axis, values * value_bytes] += job.accumulate * (2 if unit.reshards else 1)
        calls["reduce_scatter", axis, values * _FLOAT32] += job.accumulate
        if layout.dp_replicate > 1:
            calls["all_reduce", "dp_replicate", values // shards * _FLOAT32] += 1
    calls["all_reduce", axis, _FLOAT32] += 1
    return calls


def _ddp_calls(job: Job) -> Calls:
    """The calls of DDP: an all-reduce per bucket of gradients, after the last micro-batch. A bucket is full when its
    size reaches the limit; the gradients of the last parameters come first."""
    shapes = [shape for unit in fsdp_units(job.decoder, job.layout, job.recipe.seq_len) for shape in unit.shapes]
    calls, filled_bytes, limit_bytes = Counter[tuple[str, str, int]](), 0, _FIRST_BUCKET_BYTES
    for shape in reversed(shapes):
        filled_bytes += _FLOAT32 * prod(shape)
        if filled_bytes >= limit_bytes:
            calls["all_reduce", "dp_replicate", filled_bytes] += 1
            filled_bytes, limit_bytes = 0, job.layout.bucket_cap_mb * 2**20
    if filled_bytes:
        calls["all_reduce", "dp_replicate", filled_bytes] += 1
    return calls


def fsdp_units(model: Model, layout: Layout, seq_len: int) -> list[Unit]:
    """The FSDP units of a decoder in the order of the forward pass. Tied tables are in one unit with the last norm."""
    norm = _norm(model)
    embedding: list[Shape] = [(model.vocab, model.hidden_size)]
    embedding += [(seq_len, model.hidden_size)] if model.position == "learned" else []
    blocks = [Unit(_block(model, layer), layout.reshards) for layer in range(model.layers)]
    reshards_last = layout.reshard_after_forward == "always"
    if model.tie_word_embeddings:
        return [*blocks, Unit([*embedding, *norm], reshards_last)]
    head = [*norm, (model.vocab, model.hidden_size)]
    return [Unit(embedding, layout.reshards), *blocks, Unit(head, reshards_last)]


def _block(model: Model, layer: int) -> list[Shape]:
    """Shapes of the parameters of a layer."""
    has_experts = model.experts > 0 and layer >= model.dense_layers
    mlp = _experts(model) if has_experts else _mlp(model, model.ffn_hidden_size)
    return [*_norm(model), *_attention(model), *_norm(model), *mlp]


def _norm(model: Model) -> list[Shape]:
    """The weight of a norm over the hidden state, and its bias, if any."""
    return [(model.hidden_size,)] * (2 if model.norm == "layer" and model.bias == "all" else 1)


def _linear(width_in: int, width_out: int, bias: bool = False) -> list[Shape]:
    return [(width_out, width_in), (width_out,)] if bias else [(width_out, width_in)]


def _attention(model: Model) -> list[Shape]:
    """Shapes of the parameters of attention: projections, and norms of queries and keys or of latents."""
    width, heads = model.hidden_size, model.heads
    if not model.kv_lora_rank:
        biased, keys = model.bias != "none", model.kv_heads * model.head_dim
        return [
            *_linear(width, heads * model.head_dim, biased),
            *_linear(width, keys, biased),
            *_linear(width, keys, biased),
            *([(model.head_dim,)] * 2 if model.qk_norm else []),
            *_linear(heads * model.head_dim, width, model.bias == "all"),
        ]
    query_width = heads * (model.head_dim + model.qk_rope_head_dim)
    q_rank, kv_rank = model.q_lora_rank, model.kv_lora_rank
    return [
        *(
            [*_linear(width, q_rank), (q_rank,), *_linear(q_rank, query_width)]
            if q_rank
            else _linear(width, query_width)
        ),
        *_linear(width, kv_rank + model.qk_rope_head_dim),
        (kv_rank,),
        *_linear(kv_rank, heads * (model.head_dim + model.v_head_dim)),
        *_linear(heads * model.v_head_dim, width),
    ]


def _mlp(model: Model, inner_width: int) -> list[Shape]:
    biased = model.bias == "all"
    up = _linear(model.hidden_size, inner_width, biased)
    return [*(up if model.mlp == "swiglu" else []), *up, *_linear(inner_width, model.hidden_size, biased)]


def _experts(model: Model) -> list[Shape]:
    """The router, the stacked matrices of the experts, and the shared expert."""
    up = (model.experts, model.moe_ffn_hidden_size, model.hidden_size)
    down = (model.experts, model.hidden_size, model.moe_ffn_hidden_size)
    shared = _mlp(model, model.shared_experts * model.moe_ffn_hidden_size) if model.shared_experts else []
    return [(model.experts, model.hidden_size), up, up, down, *shared]


def _padded(shape: Shape, shards: int) -> int:
    """Number of values that FSDP communicates of a parameter: each rank has an equal number of rows, the last ones
    padded."""
    return -(-shape[0] // shards) * shards * prod(shape[1:])
