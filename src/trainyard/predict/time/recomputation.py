"""Time to recompute activations of a layer in the backward pass, as columns of seconds of shape [case].

A recomputed operation takes as long as in the forward pass. `hardware` has the peaks and bandwidths of a rank, `tuned`
the attainable shares of them.
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import FULL, SELECTIVE, Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.inputs.recomputed_modules import is_recomputed
from trainyard.predict.time import shapes
from trainyard.predict.time.layer import Phase, product, time_experts
from trainyard.predict.time.shapes import Product

_NORM_WIDTHS = 2.0
"""Values, in units of `width`, that a norm moves per token: its input and its output."""


def time_recomputation(cases: Cases, hardware: RankHardware, tuned: Constants, forward: Phase) -> Phase:
    """Times of recomputing a layer's forward pass (whose times are `forward`) for a micro-batch. Zero without
    activation checkpointing. If every k-th layer is recomputed (`activation_checkpoint_every`), the mean layer: 1/k."""
    is_full, is_selective = cases.activation_checkpoint == FULL, cases.activation_checkpoint == SELECTIVE
    layer_share = 1 / cases.activation_checkpoint_every
    recomputed = forward.times(np.where(is_full, layer_share, 0.0))
    if not is_selective.any():
        return recomputed
    has_modules = is_selective & (cases.recompute_modules > 0)
    recomputed = recomputed.plus(_policy(cases, forward).times(np.where(is_selective & ~has_modules, layer_share, 0.0)))
    if not has_modules.any():
        return recomputed
    return recomputed.plus(_modules(cases, hardware, tuned, forward).times(np.where(has_modules, layer_share, 0.0)))


def _policy(cases: Cases, forward: Phase) -> Phase:
    """Elementwise kernels, routing and the fraction `cases.recomputed_share` of the matrix products, as torch's
    selective policies recompute."""
    zero = np.zeros(1)
    return Phase(
        matmul=forward.matmul * cases.recomputed_share,
        attention=zero,
        elementwise=forward.elementwise,
        route=forward.route,
        scan=zero,
        parallel=zero,
        context=zero,
        dispatch=zero,
        hidden_dispatch=zero,
        host=forward.host / 2,
        launch=forward.launch / 2,
    )


def _modules(cases: Cases, hardware: RankHardware, tuned: Constants, forward: Phase) -> Phase:
    """The modules of `cases.recompute_modules`. Those of experts include routing and dispatch (`moe`), or only the
    activation function (`moe_act`)."""
    zero = np.zeros(1)
    dense_share, moe_share = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    attention_share, _ = shapes.mixer_shares(cases)
    memory_rate, is_low = hardware.bandwidth * tuned.bandwidth, cases.low_precision

    def sum_products(products: list[Product]) -> Column:
        """Seconds of all products of the forward pass."""
        return sum((product(hardware, tuned, part, is_low) for part in products), np.zeros(1))

    def activation_s(channels: Column) -> Column:
        """Seconds of the activation function on `channels` per token on a rank."""
        values = (2 + cases.gated) * cases.tokens / cases.tp * channels
        return values * cases.width_bytes / memory_rate + tuned.kernel_s

    recomputes_experts = is_recomputed(cases, "moe")
    routed, mlp = recomputes_experts * moe_share, is_recomputed(cases, "mlp") * dense_share
    norms = is_recomputed(cases, "layernorm") * shapes.sublayer_count(cases)
    norm_s = _NORM_WIDTHS * cases.residual_tokens * cases.width * cases.width_bytes / memory_rate + tuned.kernel_s
    elementwise_s = norms * norm_s + mlp * activation_s(cases.ffn)
    matmul_s = mlp * sum_products(shapes.dense_products(cases))
    if (cases.kv_lora_rank > 0).any():
        expanding = is_recomputed(cases, "mla_up_proj") * attention_share
        matmul_s = matmul_s + expanding * sum_products(shapes.latent_expansions(cases))
    if (cases.experts > 0).any():
        shared_s = sum_products(shapes.shared_expert_products(cases))
        activated = np.maximum(routed, is_recomputed(cases, "moe_act") * moe_share)
        expert_channels = cases.rank_imbalance * cases.active_experts * cases.moe_ffn_hidden_size
        shared_channels = cases.shared_experts * cases.moe_ffn_hidden_size
        shared = np.maximum(routed, is_recomputed(cases, "shared_experts") * moe_share)
        matmul_s = matmul_s + routed * time_experts(cases, hardware, tuned)[0] + shared * shared_s
        elementwise_s = (
            elementwise_s + activated * activation_s(expert_channels) + shared * activation_s(shared_channels)
        )
    attention = is_recomputed(cases, "core_attn") * forward.attention
    return Phase(
        matmul=matmul_s,
        attention=attention,
        elementwise=elementwise_s,
        route=recomputes_experts * forward.route,
        scan=zero,
        parallel=zero,
        context=zero,
        dispatch=recomputes_experts * forward.dispatch,
        hidden_dispatch=zero,
        host=forward.host / 4,
        launch=forward.launch / 4,
    )
