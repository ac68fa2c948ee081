"""Peak bytes allocated by a framework on a rank, by part, as columns.

Activations are the tensors that each operation saves for its backward pass (Korthikanti et al. 2022, arXiv:2205.05198,
section 4, but attention does not save scores); a stage keeps those of its in-flight micro-batches (1F1B: Narayanan et
al. 2021, arXiv:2104.04473, section 2.2.1). The allocator reserves `RESERVED` times the allocated bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.memory import native_memory
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.pipeline.in_flight import in_flight
from trainyard.predict.time import data_parallel, offload, shapes, state_space
from trainyard.predict.time.shapes import Weights

RESERVED = 1.2
"""Reserved over allocated bytes; published runs of torchtitan and SimuMax have 1.15 to 1.24."""
USABLE = 0.94
"""Fraction of a device's memory that can be used: the rest is for the driver, the framework and the collectives."""
_FLOAT32 = 4.0


def memory(cases: Cases) -> MemoryParts:
    """Memory of the first or the last stage, whichever needs more: the first has the embedding and most in-flight
    micro-batches, the last has the head and the logits. For trainyard's own trainer the memory is modelled at each
    moment of a step (`native_memory.py`)."""
    native = np.broadcast_to(cases.own > 0, len(cases))
    if native.any() and not native.all():
        raise ValueError(
            f"{native.sum()} of {len(cases)} cases run on trainyard's own trainer; pass the others separately"
        )
    stage_memory = native_memory.peak if native.all() else of_stage
    return fullest([stage_memory(cases, first) for first in (True, False)])


def on_host(cases: Cases) -> Column:
    """Bytes of host memory of a rank of the first or the last stage, whichever needs more."""
    if not (cases.offload > 0).any():
        return np.zeros(1)
    most = [_divided(cases, first)(1, shapes.weights(cases).trained(cases)) for first in (True, False)]
    return np.maximum(*most) * offload.host_bytes_per_weight(cases)


def _divided(cases: Cases, first: bool) -> Callable[[int, Weights], Column]:
    """A function (ZeRO stage, weights) -> number of weights that a rank of the first or last stage keeps, if data
    parallelism shards them from this ZeRO stage on."""
    alone, here = cases.pp == 1, _layers(cases)
    dense, routed = shapes.kinds_of(cases, here, first)
    tables = np.where(alone & (cases.lead == 0), np.where(cases.tied > 0, 1.0, 2.0), 1.0)
    shard = np.where(cases.divided > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.divided > 0, _expert_ranks(cases), 1.0)

    def count_kept(stage: int, some: Weights) -> Column:
        ends = some.table * tables + cases.lead + cases.tail
        common = here * some.shared + dense * some.dense + routed * some.routed + ends
        expert, divided = routed * some.expert, cases.zero >= stage
        return common / np.where(divided, shard, 1.0) + expert / np.where(divided, owners, 1.0)

    return count_kept


def of_stage(cases: Cases, first: bool) -> MemoryParts:
    """Memory of the first or the last stage, with a published framework."""
    alone, here, weights, kept = cases.pp == 1, _layers(cases), shapes.weights(cases), _divided(cases, first)
    dense, routed = shapes.kinds_of(cases, here, first)
    trained = weights.trained(cases)
    state, all_ = cases.offload > 0, cases.offload > 1
    layer = sum(data_parallel.layer_weights(cases), np.zeros(1))
    unsharded = np.where((cases.divided > 0) & (cases.zero >= 2), 1.0, 0.0)
    parts = kept(3, weights) * cases.weight_bytes
    return MemoryParts(
        parameters=np.where(all_, 0.0, parts),
        gradients=np.where(all_, 0.0, kept(2, trained) * cases.gradient_bytes),
        optimizer=np.where(state, 0.0, kept(1, trained) * cases.state_bytes),
        activations=_activations(cases, here, dense, routed, first),
        logits=np.zeros(1) if first and not alone.any() else np.where(alone | (not first), _logits(cases), 0.0),
        gathered=unsharded * layer * (2 * cases.width_bytes + cases.reduce_bytes) + np.where(all_, parts / here, 0.0),
    )


def _layers(cases: Cases) -> Column:
    """Layers of the first or last stage. The embedding and the head count as a layer each if layers divide evenly only
    then."""
    parts = cases.pp * cases.interleave
    counted = (np.mod(cases.layers, parts) != 0) & (np.mod(cases.layers + 2, parts) == 0)
    return np.where(counted, (cases.layers + 2) / cases.pp - 1, np.ceil(cases.layers / cases.pp))


def _expert_ranks(cases: Cases) -> Column:
    spread = np.where(cases.ep > 1, cases.ep, cases.tp)
    return np.maximum(cases.dp_shard * cases.cp * cases.tp / spread, 1.0)


def _activations(cases: Cases, here: Column, dense: Column, routed: Column, first: bool) -> Column:
    whole = layer_activations(cases, here, dense, routed)
    inputs = here * cases.between * cases.width * cases.width_bytes
    scores = here * _scores(cases) * cases.width_bytes
    selective = np.where(cases.flash > 0, here * _without_elementwise(cases), whole - scores)
    each = np.where(
        cases.activation_checkpoint == 2, inputs, np.where(cases.activation_checkpoint == 1, selective, whole)
    )
    each = (each + (cases.activation_checkpoint_every - 1) * whole) / cases.activation_checkpoint_every
    return each * in_flight(cases, first) + np.where(cases.activation_checkpoint > 0, whole / here, 0.0)


def layer_activations(cases: Cases, here: Column, dense: Column, routed: Column) -> Column:
    """Bytes of a micro-batch that `here` layers keep, of which `dense` have an MLP and `routed` have experts."""
    value, tp = cases.width_bytes, cases.tp
    attended, spaced = shapes.mixers(cases)
    residual = shapes.parts(cases) * cases.between * cases.width  # inputs of norms
    taken = np.where(cases.low_precision > 0, 1 / value, 1.0)  # products save their inputs in the dtype they compute in
    normed = shapes.parts(cases) * cases.between * cases.width * taken
    heads = cases.tokens / tp
    keys = np.where(cases.kv_lora_rank > 0, cases.queries, cases.kv_heads * cases.head_dim)
    values = np.where(cases.kv_lora_rank > 0, cases.values, cases.kv_heads * cases.head_dim)
    latent = np.where(cases.kv_lora_rank > 0, cases.tokens * (cases.q_lora_rank + 2 * cases.kv_lora_rank), 0.0)
    attention = heads * (cases.queries + keys + values + cases.values) + latent
    statistics = heads * cases.heads * _FLOAT32 / value
    down = np.where(cases.adapters > 0, 0.0, taken)  # needed for the weight's gradient only
    mlp = heads * cases.ffn * (1 + cases.gated + down)
    sent = shapes.routed_tokens(cases)
    ffn = cases.moe_ffn_hidden_size / shapes.expert_divided(cases)
    experts = sent * (shapes.expert_width(cases) * (1 + taken) + ffn * (1 + cases.gated + down))
    experts = experts + heads * cases.shared_experts * cases.moe_ffn_hidden_size * (1 + cases.gated + down)
    mixed = attended * (attention + statistics + _scores(cases)) + spaced * state_space.activations(cases)
    modulated = np.where(
        cases.modulated > 0, 4 * cases.tokens * cases.width, 0.0
    )  # two norms before scaling, two gates
    return value * (here * (residual + normed + mixed + modulated) + dense * mlp + routed * experts)


def _scores(cases: Cases) -> Column:
    """Values of a layer's scores and softmax, with a byte of dropout for each, if attention writes them; else 0."""
    pairs = cases.micro_batch_size * cases.heads / cases.tp * cases.seq_len**2 / cases.cp
    return np.where(cases.flash > 0, 0.0, 2.5 * pairs)


def _without_elementwise(cases: Cases) -> Column:
    """Bytes of a layer that recomputes everything but attention and most products."""
    attended, spaced = shapes.mixers(cases)
    mlps = sum(shapes.layer_kinds(cases), np.zeros(1)) / cases.layers
    products = cases.between * cases.width * shapes.parts(cases) + cases.tokens / cases.tp * (
        attended * (cases.queries + 2 * cases.kv_heads * cases.head_dim) + mlps * (1 + cases.gated) * cases.ffn
    )
    mixed = attended * cases.tokens / cases.tp * cases.values + spaced * state_space.activations(cases)
    return cases.width_bytes * (products * (1 - cases.remade) + mixed + cases.between * cases.width)


def _logits(cases: Cases) -> Column:
    """Bytes at the larger of two peaks: the logits with a float32 copy, or their gradient with the head's own, which is
    accumulated in float32."""
    values = shapes.head_rows(cases) * cases.vocab / cases.tp
    loss = values * (cases.width_bytes + _FLOAT32)
    head = values * cases.width_bytes + shapes.weights(cases).table * (cases.width_bytes + _FLOAT32)
    return np.maximum(loss, head)
