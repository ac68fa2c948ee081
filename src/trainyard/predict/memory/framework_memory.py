"""Peak bytes allocated by a framework on a rank, by part, as columns.

Activations are the tensors that each operation saves for its backward pass (Korthikanti et al. 2022, arXiv:2205.05198,
section 4, but attention does not save scores); a stage keeps those of its in-flight micro-batches (1F1B: Narayanan et
al. 2021, arXiv:2104.04473, section 2.2.1). The allocator reserves `RESERVED` times the allocated bytes. A column has a
value per case (layout), of shape [case]. Layers are dense or routed (with experts). A mixer is attention or a state
space.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainyard.predict.inputs.cases import FULL, SELECTIVE, Cases, Column, column
from trainyard.predict.inputs.fine_tuning import NF4_BYTES
from trainyard.predict.inputs.recomputed_modules import is_recomputed
from trainyard.predict.memory import native_memory
from trainyard.predict.memory.memory_parts import MemoryParts, fullest
from trainyard.predict.pipeline import partition
from trainyard.predict.pipeline.in_flight import in_flight
from trainyard.predict.time import data_parallel, offload, shapes, state_space
from trainyard.predict.time.shapes import Product, Weights

RESERVED = 1.2
"""Reserved over allocated bytes; published runs of torchtitan and SimuMax have 1.15 to 1.24."""
USABLE = 0.94
"""Fraction of a device's memory that can be used: the rest is for the driver, the framework and the collectives."""
_FLOAT32 = 4.0
_VALUES_PER_SCORE = 2.5
"""Values kept for each score of unfused attention: the score, its softmax, and a byte of dropout."""


def memory(cases: Cases) -> MemoryParts:
    """Bytes by part of the first or the last stage, whichever needs more: the first has the embedding and most
    in-flight micro-batches, the last has the head and the logits. For trainyard's own trainer the memory is modelled at
    each moment of a step (`native_memory.py`); such cases cannot be mixed with others."""
    native = np.broadcast_to(cases.native > 0, len(cases))
    if native.any() and not native.all():
        raise ValueError(
            f"{native.sum()} of {len(cases)} cases run on trainyard's own trainer; pass the others separately"
        )
    if native.all():
        return fullest([native_memory.peak(cases, first) for first in (True, False)])
    fullest_end = fullest([of_stage(cases, first) for first in (True, False)])
    rows = np.flatnonzero(np.broadcast_to((cases.first_less > 0) & (cases.pp > 2), len(cases)))
    return _with_second_rank(cases, fullest_end, rows) if len(rows) else fullest_end


def _with_second_rank(cases: Cases, fullest_end: MemoryParts, rows: npt.NDArray[np.intp]) -> MemoryParts:
    """Bytes by part of the fullest of three ranks: the first and the last one (`fullest_end`) and, in the cases `rows`,
    in which the first one has fewer layers, the second one. That keeps one micro-batch less in flight with one stage
    per rank, and 2 / v less with v stages, as the first rank of a pipeline of p - 2 / (v + 1) ranks does
    (`in_flight`)."""
    cases = cases.take(rows)
    pp, layers = cases.pp - 2 / (cases.interleave + 1), _rank_layers(cases, 1.0)
    second = replace(
        cases,
        pp=pp,
        layers=pp * layers,
        dense_layers=np.clip(cases.dense_layers - _rank_layers(cases, 0.0), 0.0, layers),
        vocab=column(0),
        first_less=column(0),
        last_less=column(0),
    )
    fullest_parts = [np.array(np.broadcast_to(part, len(fullest_end.total))) for part in fullest_end]
    ends = MemoryParts(*(part[rows] for part in fullest_parts))
    for part, of_rows in zip(fullest_parts, fullest([ends, of_stage(second, first=True)]), strict=True):
        part[rows] = of_rows
    return MemoryParts(*fullest_parts)


def on_host(cases: Cases) -> Column:
    """Bytes of host memory of a rank of the first or the last stage, whichever needs more."""
    if not (cases.offload > 0).any():
        return np.zeros(1)
    trained = shapes.weights(cases).trained(cases)
    # Trained weights whose optimizer state a rank of the first and of the last stage has.
    first_weights, last_weights = (_count_kept_weights(cases, first)(1, trained) for first in (True, False))
    return np.maximum(first_weights, last_weights) * offload.host_bytes_per_weight(cases)


def _count_kept_weights(cases: Cases, first: bool) -> Callable[[int, Weights], Column]:
    """Returns a function (ZeRO stage, weights by kind) -> number of weights that a rank of the first or last stage
    keeps, [case], if data parallelism shards them from this ZeRO stage on: 1 for the optimizer state, 2 for gradients,
    3 for weights."""
    is_only_stage, layer_count = cases.pp == 1, _stage_layers(cases, first)
    dense, routed = shapes.stage_layer_kinds(cases, layer_count, first)
    # Matrices of the size of the embedding: both ends of the model are on a single stage, and may be one matrix.
    tables = np.where(
        is_only_stage & (cases.lead_parameters == 0), np.where(cases.tie_word_embeddings > 0, 1.0, 2.0), 1.0
    )
    shard = np.where(cases.is_sharded > 0, cases.dp_shard * cases.cp, 1.0)
    owners = np.where(cases.is_sharded > 0, _expert_ranks(cases), 1.0)

    def count_kept(stage: int, layer_weights: Weights) -> Column:
        """Weights on a rank; expert weights are sharded over the ranks that have the same experts."""
        ends = layer_weights.table * tables + cases.lead_parameters + cases.tail_parameters
        common = layer_count * layer_weights.shared + dense * layer_weights.dense + routed * layer_weights.routed + ends
        expert, divided = routed * layer_weights.expert, cases.zero >= stage
        return common / np.where(divided, shard, 1.0) + expert / np.where(divided, owners, 1.0)

    return count_kept


def of_stage(cases: Cases, first: bool) -> MemoryParts:
    """Bytes by part of the first or the last stage (`first`), with a published framework."""
    is_alone, stage_layers, weights = cases.pp == 1, _stage_layers(cases, first), shapes.weights(cases)
    count_kept = _count_kept_weights(cases, first)  # (ZeRO stage, weights) -> those on a rank
    dense, routed = shapes.stage_layer_kinds(cases, stage_layers, first)
    trained = weights.trained(cases)
    state_offloaded, all_offloaded = cases.offload > 0, cases.offload == offload.ALL
    gathered_bytes = sum(data_parallel.gathered_bytes(cases), np.zeros(1))
    reduced_bytes = sum(data_parallel.layer_weights(cases, trained=True), np.zeros(1)) * cases.reduce_bytes
    # From ZeRO-2 on, two layers are gathered as they are kept, and the gradients of one wait for their reduction. In a
    # pipeline, torch's FSDP keeps the weights and the gradients of a whole stage gathered until the end of the step.
    unsharded = np.where((cases.is_sharded > 0) & (cases.zero >= 2), 1.0, 0.0)
    gathered_layers, reduced_layers = (np.where(is_alone, count, stage_layers) for count in (2.0, 1.0))
    weight_bytes = _weight_bytes(cases, weights, count_kept)
    return MemoryParts(
        parameters=np.where(all_offloaded, 0.0, weight_bytes),
        gradients=np.where(all_offloaded, 0.0, count_kept(2, trained) * cases.gradient_bytes),
        optimizer=np.where(state_offloaded, 0.0, count_kept(1, trained) * cases.state_bytes),
        activations=_activations(cases, stage_layers, dense, routed, first),
        logits=np.zeros(1)
        if first and not is_alone.any()
        else np.where(is_alone | (not first), _logit_bytes(cases), 0.0),
        gathered=unsharded * (gathered_layers * gathered_bytes + reduced_layers * reduced_bytes)
        + np.where(all_offloaded, weight_bytes / stage_layers, 0.0)
        + cases.quantised * cases.width * cases.ffn / cases.tp * cases.width_bytes,  # one dequantised matrix
    )


def _weight_bytes(cases: Cases, weights: Weights, count_kept: Callable[[int, Weights], Column]) -> Column:
    """Bytes of the weights that a rank keeps: `weights` with their adapters, of which matrices may be in NF4. Data
    parallelism shards the quantisation constants like the matrices."""
    quantised, is_quantised = count_kept(3, shapes.quantised_weights(cases)), cases.quantised > 0
    kept = count_kept(3, weights) + count_kept(3, shapes.adapter_weights(cases)) * (1 - shapes.all_trained(cases))
    return kept * cases.weight_bytes - np.where(is_quantised, quantised * (cases.weight_bytes - NF4_BYTES), 0.0)


def _stage_layers(cases: Cases, first: bool) -> Column:
    """Layers of the first or last rank of the pipeline, on all its stages; one if it has none."""
    return np.maximum(_rank_layers(cases, np.zeros(1) if first else cases.pp - 1), 1.0)


def _rank_layers(cases: Cases, rank: Column | float) -> Column:
    """Layers of a rank of the pipeline."""
    stages = cases.pp * cases.interleave
    return partition.divided(cases.layers, stages, cases.first_less, cases.last_less).on_rank(rank, cases.pp)


def _expert_ranks(cases: Cases) -> Column:
    """Ranks that have the same experts, over which data parallelism can shard them. Experts are divided over ep, or
    over tp without it."""
    spread = np.where(cases.ep > 1, cases.ep, cases.tp)
    return np.maximum(cases.dp_shard * cases.cp * cases.tp / spread, 1.0)


def _activations(cases: Cases, stage_layers: Column, dense: Column, routed: Column, first: bool) -> Column:
    """Bytes of activations of the first or last stage at its peak, with activation checkpointing: what its in-flight
    micro-batches keep, and one layer as a whole while it is recomputed. `stage_layers`, `dense`, `routed`: its layers,
    those without and those with experts."""
    all_bytes = layer_activations(cases, stage_layers, dense, routed)
    input_bytes = stage_layers * cases.residual_tokens * cases.width * cases.width_bytes
    selective_bytes = stage_layers * _selective_activations(cases)
    has_modules = cases.recompute_modules > 0
    if has_modules.any():
        without_modules = layer_activations(cases, stage_layers, dense, routed, without_recomputed=True)
        selective_bytes = np.where(has_modules, without_modules, selective_bytes)
    micro_batch_bytes = np.where(
        cases.activation_checkpoint == FULL,
        input_bytes,
        np.where(cases.activation_checkpoint == SELECTIVE, selective_bytes, all_bytes),
    )
    # One layer in `activation_checkpoint_every` is checkpointed, the others keep everything.
    micro_batch_bytes = (
        micro_batch_bytes + (cases.activation_checkpoint_every - 1) * all_bytes
    ) / cases.activation_checkpoint_every
    return micro_batch_bytes * in_flight(cases, first) + np.where(
        cases.activation_checkpoint > 0, all_bytes / stage_layers, 0.0
    )


def layer_activations(
    cases: Cases, stage_layers: Column, dense: Column, routed: Column, without_recomputed: bool = False
) -> Column:
    """Bytes of a micro-batch that `stage_layers` layers keep without recomputation, of which `dense` have an MLP and
    `routed` have experts. `without_recomputed`: leave out what `cases.recompute_modules` recompute. `..._values` are
    numbers of values in the compute dtype, of one layer."""

    def kept_share(*modules: str) -> Column:
        """0 in cases that recompute one of the modules, else 1."""
        if not without_recomputed:
            return np.ones(1)
        return 1 - np.maximum.reduce([is_recomputed(cases, module) for module in modules])

    value_bytes, tp = cases.width_bytes, cases.tp
    attention_share, space_share = shapes.mixer_shares(cases)
    residual_values = shapes.sublayer_count(cases) * cases.residual_tokens * cases.width  # inputs of norms
    # A matrix needs its input for its own gradient or its adapter's, not if it is frozen without one.
    all_trained = shapes.all_trained(cases) > 0
    keeps_attention_input, keeps_mlp_input = (
        np.where(all_trained | (rank > 0), 1.0, 0.0) for rank in (cases.adapters, cases.mlp_adapters)
    )
    input_ratio = np.where(
        cases.low_precision > 0, 1 / value_bytes, 1.0
    )  # products save their inputs in the dtype they compute in
    kept_inputs = shapes.sublayer_count(cases) * (keeps_attention_input + keeps_mlp_input) / 2
    normed_values = kept_share("layernorm") * kept_inputs * cases.residual_tokens * cases.width * input_ratio
    tokens_per_tp = cases.tokens / tp
    key_channels = np.where(cases.kv_lora_rank > 0, cases.queries, cases.kv_heads * cases.head_dim)
    value_channels = np.where(cases.kv_lora_rank > 0, cases.values, cases.kv_heads * cases.head_dim)
    latent_values = np.where(cases.kv_lora_rank > 0, cases.tokens * (cases.q_lora_rank + 2 * cases.kv_lora_rank), 0.0)
    is_expanded = np.where(cases.kv_lora_rank > 0, kept_share("mla_up_proj"), 1.0)
    attention_values = (
        tokens_per_tp * (is_expanded * (cases.queries + key_channels + value_channels) + cases.values) + latent_values
    )
    # A float32 log-sum-exp per token and head.
    statistics = kept_share("core_attn") * tokens_per_tp * cases.heads * _FLOAT32 / value_bytes
    down_input_ratio = keeps_mlp_input * input_ratio
    mlp_values = kept_share("mlp") * tokens_per_tp * cases.ffn * (1 + cases.gated + down_input_ratio)
    routed_tokens = shapes.routed_tokens(cases)  # rows of all experts of a rank
    ffn = cases.moe_ffn_hidden_size / shapes.expert_divided(cases)
    expert_values = (
        cases.expert_imbalance
        * routed_tokens
        * kept_share("moe")
        * (
            shapes.expert_width(cases) * (1 + down_input_ratio)
            + ffn * (1 + cases.gated + kept_share("moe_act") * down_input_ratio)
        )
    )
    shared_channels = cases.shared_experts * cases.moe_ffn_hidden_size
    expert_values = expert_values + kept_share("moe", "shared_experts") * tokens_per_tp * shared_channels * (
        1 + cases.gated + down_input_ratio
    )
    attention_adapter_values, mlp_adapter_values = (
        _adapter_values(products)
        for products in (shapes.attention_adapter_products(cases), shapes.mlp_adapter_products(cases))
    )
    mixer_values = attention_share * (
        attention_values + attention_adapter_values + statistics + kept_share("core_attn") * _score_values(cases)
    ) + space_share * state_space.activations(cases)
    modulation_values = np.where(
        cases.modulation_vectors > 0, 4 * cases.tokens * cases.width, 0.0
    )  # two norms before scaling, two gates
    return value_bytes * (
        stage_layers * (residual_values + normed_values + mixer_values + modulation_values)
        + dense * (mlp_values + mlp_adapter_values)
        + routed * expert_values
    )


def _adapter_values(products: list[Product]) -> Column:
    """Values that adapters keep between their two products, which alternate in `products`."""
    return sum((product.rows * product.columns * product.count for product in products[::2]), np.zeros(1))


def _score_values(cases: Cases) -> Column:
    """Values of a layer's scores if attention writes them, else 0: the scores, their softmax, and a byte of dropout
    (half a value) for each."""
    pairs = cases.micro_batch_size * cases.heads / cases.tp * cases.seq_len**2 / cases.cp
    return np.where(cases.flash > 0, 0.0, _VALUES_PER_SCORE * pairs)


def _selective_activations(cases: Cases) -> Column:
    """Bytes of a micro-batch that a layer of the mean kind keeps if it recomputes everything but attention and most
    products: results of the products that are not recomputed, of attention or the state space, and the layer's
    input."""
    attention_share, space_share = shapes.mixer_shares(cases)
    mlp_share = sum(shapes.layer_kinds(cases), np.zeros(1)) / cases.layers
    product_values = cases.residual_tokens * cases.width * shapes.sublayer_count(cases) + cases.tokens / cases.tp * (
        attention_share * (cases.queries + 2 * cases.kv_heads * cases.head_dim)
        + mlp_share * (1 + cases.gated) * cases.ffn
    )
    mixer_values = attention_share * cases.tokens / cases.tp * cases.values + space_share * state_space.activations(
        cases
    )
    return cases.width_bytes * (
        product_values * (1 - cases.recomputed_share) + mixer_values + cases.residual_tokens * cases.width
    )


def _logit_bytes(cases: Cases) -> Column:
    """Bytes at the larger of two peaks: the logits with a float32 copy, or their gradient with that of the head, if it
    is trained, which is accumulated in float32."""
    logit_count = shapes.head_rows(cases) * cases.vocab / cases.tp
    loss_bytes = logit_count * (cases.width_bytes + _FLOAT32)
    trained_table = shapes.weights(cases).trained(cases).table
    head_bytes = logit_count * cases.width_bytes + trained_table * (cases.width_bytes + _FLOAT32)
    return np.maximum(loss_bytes, head_bytes)
