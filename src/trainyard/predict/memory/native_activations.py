"""Bytes of activations of a layer with trainyard's own trainer: what it saves for its backward pass, and what that
recomputes. Derived from the training code (`train/model/`) and fake runs of it. A column has a value per case (layout),
of shape [case]. Layers are dense or routed (with experts).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import FULL, SELECTIVE, Cases, Column

_FLOAT32 = 4.0
_INT64 = 8.0
_INDICES_PER_ROW = 4
"""Integers kept per row that is sent to an expert, such as its expert and its place in the order of the rows."""


class KeptActivations(NamedTuple):
    """Bytes of one layer and micro-batch. `kept`: saved for the backward pass, under the case's recomputation;
    `recomputed`: recomputed in it; `attention`: attention's part without recomputation."""

    kept: Column
    recomputed: Column
    attention: Column


def kept_activations(cases: Cases, dense: Column, routed: Column) -> KeptActivations:
    """Bytes of activations of the mean layer of a stage with `dense` layers and `routed` (MoE) layers, their numbers in
    each case. Elements of attention: `head_elements` of queries, keys, values and its output; `latent_elements` of
    MLA's low-rank projections; `normed_elements` of normalized queries and keys."""
    value_bytes, tp, tokens = cases.width_bytes, cases.tp, cases.tokens
    rows_between = cases.residual_tokens  # tokens between matrix products, which sequence parallelism divides
    has_latent_attention = cases.kv_lora_rank > 0
    key_width = np.where(has_latent_attention, cases.queries, cases.kv_heads * cases.head_dim)
    value_width = np.where(
        has_latent_attention, cases.kv_heads * (cases.head_dim + cases.v_head_dim), cases.kv_heads * cases.head_dim
    )
    head_elements = tokens / tp * (cases.queries + key_width + value_width + cases.values)
    latent_elements = np.where(
        has_latent_attention, tokens * (2 * cases.q_lora_rank + 2 * cases.kv_lora_rank + cases.qk_rope_head_dim), 0.0
    )
    normed_elements = cases.qk_norm * tokens / tp * (cases.queries + key_width)
    statistics_bytes = tokens / tp * _FLOAT32 * (cases.heads + cases.qk_norm * (cases.heads + cases.kv_heads))
    statistics_bytes = statistics_bytes + 2 * rows_between * _FLOAT32  # of the two norms of a layer
    # The norm's input and output, then the tensors of attention.
    attention_bytes = (
        value_bytes
        * (rows_between * cases.width + tokens * cases.width + head_elements + latent_elements + normed_elements)
        + statistics_bytes
    )
    inner_tensors = 2 + 2 * cases.gated  # of the MLP's inner width: around the activation function, and of the gate
    mlp_bytes = value_bytes * (
        rows_between * cases.width + tokens * cases.width + inner_tensors * tokens * cases.ffn / tp
    )
    routed_rows = cases.active_experts * tokens
    expert_bytes = value_bytes * (
        rows_between * cases.width + routed_rows * (2 * cases.width + inner_tensors * cases.moe_ffn_hidden_size)
    )
    # The router: its input and three tensors with a value per expert, in float32; and indices of the rows.
    expert_bytes = (
        expert_bytes
        + tokens * (cases.width * _FLOAT32 + 3 * cases.experts * _FLOAT32)
        + routed_rows * _INDICES_PER_ROW * _INT64
    )
    shared_expert_bytes = (
        value_bytes * tokens * (cases.width + inner_tensors * cases.shared_experts * cases.moe_ffn_hidden_size)
    )
    expert_bytes = expert_bytes + np.where(cases.shared_experts > 0, shared_expert_bytes, 0.0)
    # The mean layer: all that it saves, its input, and the results of its matrix products and attention, of which
    # `result_bytes` are those of the last products of attention and of the MLP.
    layers = dense + routed
    all_bytes = attention_bytes + (dense * mlp_bytes + routed * expert_bytes) / layers
    input_bytes = value_bytes * rows_between * cases.width
    ffn_elements = (
        dense * cases.ffn / tp * tokens
        + routed * (routed_rows + tokens * cases.shared_experts) * cases.moe_ffn_hidden_size
    ) / layers
    result_bytes = value_bytes * (2 * tokens * cases.width + routed / layers * routed_rows * cases.width)
    product_bytes = value_bytes * (head_elements + latent_elements + (1 + cases.gated) * ffn_elements) + result_bytes
    selective_bytes = input_bytes + product_bytes
    recomputed_bytes = np.where(
        cases.activation_checkpoint == FULL,
        all_bytes,
        np.where(cases.activation_checkpoint == SELECTIVE, all_bytes - input_bytes - product_bytes + result_bytes, 0.0),
    )
    saved_bytes = np.where(
        cases.activation_checkpoint == FULL,
        input_bytes,
        np.where(cases.activation_checkpoint == SELECTIVE, selective_bytes, all_bytes),
    )
    return KeptActivations(
        (saved_bytes + (cases.activation_checkpoint_every - 1) * all_bytes) / cases.activation_checkpoint_every,
        recomputed_bytes,
        attention_bytes,
    )
