"""Bytes of the mean layer of a model on a rank, which do not depend on the stage that has it.

Activations are the tensors that each operation saves for its backward pass (Korthikanti et al. 2022, arXiv:2205.05198,
section 4, but attention does not save scores). A column has a value per case (layout), of shape [case]. Layers are
dense or routed (with experts). A mixer is attention or a state space.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import FULL, SELECTIVE, Cases, Column
from trainyard.predict.inputs.recomputed_modules import is_recomputed
from trainyard.predict.time import data_parallel, shapes, state_space
from trainyard.predict.time.shapes import Product, Weights

FLOAT32 = 4.0
_VALUES_PER_SCORE = 2.5
"""Values kept for each score of unfused attention: the score, its softmax, and a byte of dropout."""


class KindBytes(NamedTuple):
    """Bytes of a layer: `common` of every kind of layer, and what a `dense` MLP or experts (`routed`) add."""

    common: Column
    dense: Column
    routed: Column

    def of_layers(self, layers: Column, dense: Column, routed: Column) -> Column:
        """Bytes of several layers, of which `dense` have an MLP and `routed` have experts."""
        return layers * self.common + dense * self.dense + routed * self.routed


class LayerMemory(NamedTuple):
    """Memory of a layer. `weights`, `trained`: parameters of a rank of tp and ep, and those that are trained;
    `gathered`, `reduced`: bytes of its weights as data parallelism gathers them, and of its gradients as it reduces
    them; `whole`: activations of a micro-batch without recomputation, `kept`: with activation checkpointing."""

    weights: Weights
    trained: Weights
    gathered: Column
    reduced: Column
    whole: KindBytes
    kept: KindBytes


def measure_layer(cases: Cases) -> LayerMemory:
    """The memory of the mean layer of each case."""
    weights = shapes.weights(cases)
    trained = weights.trained(cases)
    whole = _kept_activations(cases)
    return LayerMemory(
        weights=weights,
        trained=trained,
        gathered=sum(data_parallel.gathered_bytes(cases, weights), np.zeros(1)),
        reduced=sum(data_parallel.layer_weights(cases, trained), np.zeros(1)) * cases.reduce_bytes,
        whole=whole,
        kept=_with_checkpoints(cases, whole),
    )


def _with_checkpoints(cases: Cases, whole: KindBytes) -> KindBytes:
    """Bytes of a micro-batch that a layer keeps with activation checkpointing, `whole` without it."""
    selective = KindBytes(_selective_activations(cases), np.zeros(1), np.zeros(1))
    has_modules = cases.recompute_modules > 0
    if has_modules.any():
        without_modules = _kept_activations(cases, without_recomputed=True)
        selective = KindBytes(*(np.where(has_modules, *pair) for pair in zip(without_modules, selective, strict=True)))
    inputs = KindBytes(cases.residual_tokens * cases.width * cases.width_bytes, np.zeros(1), np.zeros(1))
    # One layer in `activation_checkpoint_every` is checkpointed, the others keep everything.
    every, mode = cases.activation_checkpoint_every, cases.activation_checkpoint
    return KindBytes(
        *(
            (
                np.where(mode == FULL, of_full, np.where(mode == SELECTIVE, of_selective, all_bytes))
                + (every - 1) * all_bytes
            )
            / every
            for of_full, of_selective, all_bytes in zip(inputs, selective, whole, strict=True)
        )
    )


def _kept_activations(cases: Cases, without_recomputed: bool = False) -> KindBytes:
    """Bytes of a micro-batch that a layer keeps without recomputation. `without_recomputed`: leave out what
    `cases.recompute_modules` recompute. `..._values` are numbers of values in the compute dtype."""

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
    input_ratio = np.where((cases.low_precision > 0) & (cases.low_precision_inputs > 0), 1 / value_bytes, 1.0)
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
    statistics = kept_share("core_attn") * tokens_per_tp * cases.heads * FLOAT32 / value_bytes
    down_input_ratio = keeps_mlp_input * input_ratio
    mlp_values = kept_share("mlp") * tokens_per_tp * cases.ffn * (1 + cases.gated + down_input_ratio)
    routed_tokens = shapes.routed_tokens(cases)  # rows of all experts of a rank
    ffn = cases.moe_ffn_hidden_size / shapes.expert_divided(cases)
    expert_values = (
        cases.rank_imbalance
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
    if shapes.have_adapters(cases):
        attention_values = attention_values + _adapter_values(shapes.attention_adapter_products(cases))
        mlp_values = mlp_values + _adapter_values(shapes.mlp_adapter_products(cases))
    mixer_values = attention_share * (
        attention_values + statistics + kept_share("core_attn") * _score_values(cases)
    ) + space_share * state_space.activations(cases)
    modulation_values = np.where(
        cases.modulation_vectors > 0, 4 * cases.tokens * cases.width, 0.0
    )  # two norms before scaling, two gates
    return KindBytes(
        common=value_bytes * (residual_values + normed_values + mixer_values + modulation_values),
        dense=value_bytes * mlp_values,
        routed=value_bytes * expert_values,
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
