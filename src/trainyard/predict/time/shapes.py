"""Matrix products and weights of a model on one rank, as columns.

With expert parallelism (`ep` > 1), `tp` does not divide experts: ranks of `tp` then hold different tokens. Otherwise
`tp` divides each expert like a dense MLP (Megatron Core's rule for `expert-tensor-parallel-size`). A column has a value
per case (layout), of shape [case]. Products are those of the forward pass of one micro-batch in one layer; a product
whose sizes are 0 in some cases does not exist in them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column


class Product(NamedTuple):
    """`count` products of (rows x depth) by (depth x columns)."""

    rows: Column
    columns: Column
    depth: Column
    count: Column | float = 1.0

    @property
    def flops(self) -> Column:
        return 2 * self.rows * self.columns * self.depth * self.count

    @property
    def weights(self) -> Column:
        return self.columns * self.depth * self.count

    def backward(self, trained: Column | float = 1.0) -> tuple[Product, Product]:
        """Products of the input's gradient and, if `trained` is 1, of the weight's gradient."""
        return (
            Product(self.rows, self.depth, self.columns, self.count),
            Product(self.depth, self.columns, self.rows, self.count * trained),
        )


def attention_products(cases: Cases) -> list[Product]:
    """Projections before and after attention in a layer, for a micro-batch on a rank; those of latent attention are
    empty in cases without it."""
    tokens, width, tp = cases.tokens, cases.width, cases.tp
    has_latent_attention = cases.kv_lora_rank > 0
    if not has_latent_attention.any():
        outputs = (cases.heads + 2 * cases.kv_heads) * cases.head_dim / tp
        projections: list[Product] = []
        for rows, before, after in streams(cases):
            projections += [Product(rows, outputs, width, before), Product(rows, width, cases.values / tp, after)]
        return projections
    return [
        *latent_expansions(cases),
        # Latent attention compresses queries, keys and values to low-rank channels.
        Product(
            cases.residual_tokens,
            np.where(has_latent_attention, cases.q_lora_rank + cases.kv_lora_rank + cases.qk_rope_head_dim, 0.0),
            width,
        ),
        Product(tokens, width, cases.values / tp),
    ]


def latent_expansions(cases: Cases) -> list[Product]:
    """Projections that expand compressed queries, and keys and values, to those of all heads; without latent attention
    the first is the projection to queries, keys and values."""
    is_latent = cases.kv_lora_rank > 0
    expanded = np.where(is_latent, cases.heads * (cases.head_dim + cases.v_head_dim), 0.0)
    qkv_width = (cases.heads + 2 * cases.kv_heads) * cases.head_dim
    return [
        Product(
            cases.tokens,
            np.where(is_latent, cases.queries, qkv_width) / cases.tp,
            np.where(is_latent & (cases.q_lora_rank > 0), cases.q_lora_rank, cases.width),
        ),
        Product(cases.tokens, expanded / cases.tp, cases.kv_lora_rank),
    ]


def streams(cases: Cases) -> list[tuple[Column, Column, Column]]:
    """(rows, share of layers, share of layers) of each stream with its own weights: all positions, or images and text
    separately. `rows` are those of a micro-batch; the second share counts the part after attention, which the last
    layer may omit for text."""
    double_share = cases.double_layers / cases.layers
    shares = [(cases.tokens, 1 - double_share, 1 - double_share)]
    if (double_share > 0).any():
        text = cases.micro_batch_size * cases.text_positions
        shares += [
            (cases.tokens - text, double_share, double_share),
            (text, double_share, double_share - cases.text_ends / cases.layers),
        ]
    return shares


def modulation_product(cases: Cases) -> Product:
    """Product that gives each sample's scales, shifts and gates (adaLN); not divided by tp."""
    return Product(cases.micro_batch_size, cases.modulation_vectors * cases.width, cases.width)


def space_products(cases: Cases) -> list[Product]:
    """Projections before and after the scan of a state space. In Mamba-1 (`ssm_dt_rank` > 0) the step sizes and the
    state's input and output are computed from the inner channels, not from `width`."""
    inner, tp = cases.ssm_heads * cases.ssm_head_dim, cases.tp
    mamba1 = cases.ssm_dt_rank > 0
    state_inputs = np.where(mamba1, 0.0, 2 * cases.ssm_groups * cases.ssm_state_size + cases.ssm_heads)
    steps = np.where(mamba1, cases.ssm_dt_rank + 2 * cases.ssm_state_size, 0.0)
    return [
        # Input, gate and, in Mamba-2, B, C and step sizes.
        Product(cases.tokens, (2 * inner + state_inputs) / tp, cases.width),
        Product(cases.tokens, steps, inner / tp),  # Mamba-1: low-rank step sizes, and the state's input and output
        Product(cases.tokens, np.where(mamba1, inner / tp, 0.0), cases.ssm_dt_rank),  # Mamba-1: step sizes
        Product(cases.tokens, cases.width, inner / tp),  # output
    ]


def convolution_channels(cases: Cases) -> Column:
    """Channels of a state space's short convolution."""
    return cases.ssm_heads * cases.ssm_head_dim + np.where(
        cases.ssm_dt_rank > 0, 0.0, 2 * cases.ssm_groups * cases.ssm_state_size
    )


def _space_vectors(cases: Cases) -> Column:
    """Parameters of a state space outside its matrices: convolution, decays, step sizes and inner norm."""
    inner = cases.ssm_heads * cases.ssm_head_dim
    # Decay, skip weight and bias of the step size of each head; Mamba-1 has a decay for each value of the state.
    head_parameters = cases.ssm_heads * np.where(cases.ssm_dt_rank > 0, cases.ssm_state_size + 2, 3.0)
    return ((cases.ssm_conv_kernel + 1) * convolution_channels(cases) + head_parameters + inner) / cases.tp


def attention_adapter_products(cases: Cases) -> list[Product]:
    """Products of the LoRA adapters on the projections before and after attention."""
    inputs = np.where(cases.split_adapters > 0, 3.0, 1.0)  # queries, keys and values, or all of them
    outputs = (cases.heads + 2 * cases.kv_heads) * cases.head_dim
    return [
        *_adapter_products(cases, cases.adapters, cases.width, outputs, inputs),
        *_adapter_products(cases, cases.adapters, cases.values, cases.width, row_parallel=True),
    ]


def mlp_adapter_products(cases: Cases) -> list[Product]:
    """Products of the LoRA adapters on the matrices of a dense MLP."""
    parts = 1 + cases.gated  # up, and gate
    inputs = np.where(cases.split_adapters > 0, parts, 1.0)
    return [
        *_adapter_products(cases, cases.mlp_adapters, cases.width, parts * cases.ffn, inputs),
        *_adapter_products(cases, cases.mlp_adapters, cases.ffn, cases.width, row_parallel=True),
    ]


def _adapter_products(
    cases: Cases,
    rank: Column,
    width_in: Column,
    width_out: Column,
    count: Column | float = 1.0,
    *,
    row_parallel: bool = False,
) -> list[Product]:
    """Products of `count` adapters of rank `rank` with the same `width_in` inputs, down to the rank and up again to
    `width_out` outputs of all of them together. As in Megatron-Bridge, tp divides the rank of the first matrix, or the
    inputs of it next to a `row_parallel` matrix, and the outputs of the second one."""
    inner, inputs = (rank, width_in / cases.tp) if row_parallel else (rank / cases.tp, width_in)
    return [Product(cases.tokens, inner, inputs, count), Product(cases.tokens, width_out / cases.tp, rank)]


def all_trained(cases: Cases) -> Column:
    """1 if all weights are trained, 0 if only adapters are."""
    return np.where(cases.adapters + cases.mlp_adapters > 0, 0.0, 1.0)


def have_adapters(cases: Cases) -> bool:
    """Whether any of the cases trains adapters."""
    return bool((cases.adapters + cases.mlp_adapters > 0).any())


def _mlp_products(cases: Cases, ffn: Column, rows: Column, share: Column | float = 1.0) -> list[Product]:
    """The two products of an MLP with `ffn` channels on `rows` tokens; `share`: fraction of the layers that have it."""
    return [
        Product(rows, (1 + cases.gated) * ffn / cases.tp, cases.width, share),
        Product(rows, cases.width, ffn / cases.tp, share),
    ]


def dense_products(cases: Cases) -> list[Product]:
    """The MLP of a layer without experts."""
    return [product for rows, _, share in streams(cases) for product in _mlp_products(cases, cases.ffn, rows, share)]


def expert_divided(cases: Cases) -> Column:
    """Number of ranks over which `tp` divides each expert."""
    return np.where(cases.ep > 1, 1.0, cases.tp)


def routed_tokens(cases: Cases) -> Column:
    """Tokens that a rank sends to experts, counted once for every expert they use."""
    return cases.tokens / np.where(cases.ep > 1, cases.tp, 1.0) * cases.active_experts


def local_experts(cases: Cases) -> Column:
    """Routed experts of a layer on a rank of ep."""
    return np.maximum(cases.experts / cases.ep, 1.0)


def expert_products(cases: Cases) -> list[Product]:
    """Products of the routed experts on a rank."""
    experts_of_rank = local_experts(cases)
    rows = routed_tokens(cases) / experts_of_rank
    ffn, width = cases.moe_ffn_hidden_size / expert_divided(cases), expert_width(cases)
    return [
        Product(rows, (1 + cases.gated) * ffn, width, experts_of_rank),
        Product(rows, width, ffn, experts_of_rank),
    ]


def shared_expert_products(cases: Cases) -> list[Product]:
    """Products of the shared experts, which every token uses."""
    return _mlp_products(cases, cases.shared_experts * cases.moe_ffn_hidden_size, cases.tokens)


def common_expert_products(cases: Cases) -> list[Product]:
    """Products of a layer with experts that are applied to every token: router, shared experts, and the projections
    around latent experts."""
    common = [Product(cases.residual_tokens, cases.experts, cases.width), *shared_expert_products(cases)]
    if (cases.moe_latent_size > 0).any():
        common += [
            Product(cases.residual_tokens, cases.moe_latent_size, cases.width),
            Product(cases.residual_tokens, cases.width, cases.moe_latent_size),
        ]
    return common


def expert_width(cases: Cases) -> Column:
    """Channels of a token as it is sent to experts."""
    return np.where(cases.moe_latent_size > 0, cases.moe_latent_size, cases.width)


def head_rows(cases: Cases) -> Column:
    """Rows of a micro-batch that the head is applied to."""
    return np.where(cases.head_rows > 0, cases.micro_batch_size * cases.head_rows, cases.tokens)


def head_product(cases: Cases) -> Product:
    """The product of the head: rows of a micro-batch by the vocabulary's part on a rank of tp."""
    return Product(head_rows(cases), cases.vocab / cases.tp, cases.width)


def entry_product(cases: Cases) -> Product:
    """Input projections of a sample's data to the model's width, not divided by tp; empty with an embedding table."""
    return Product(cases.tokens, cases.width, cases.entry_values / cases.seq_len)


class Weights(NamedTuple):
    """Parameters of one layer on a rank of tp and ep, before data parallelism divides them. `shared`: those of every
    layer (mean over attention and state spaces); `dense`: added by a dense MLP; `routed`: added by a layer with experts
    for every token; `expert`: its routed experts. `table`: one matrix of vocabulary x width.
    """

    shared: Column
    dense: Column
    routed: Column
    expert: Column
    table: Column

    def trained(self, cases: Cases) -> Weights:
        """The trained parameters among these: only the adapters, if there are any."""
        if not have_adapters(cases):
            return self
        trained_share, adapters = all_trained(cases), adapter_weights(cases)
        return Weights(
            *(trained_share * part + adapter for part, adapter in zip(self, adapters, strict=True)),
        )


def weights(cases: Cases) -> Weights:
    """Parameters of the mean layer and of the vocabulary's table on a rank, before data parallelism shards them."""
    attention_share, space_share = mixer_shares(cases)
    common_weights = sublayer_count(cases) * cases.width + cases.vector_parameters + modulation_product(cases).weights
    if (space_share > 0).any():
        common_weights = common_weights + space_share * (_sum_weights(space_products(cases)) + _space_vectors(cases))
    return Weights(
        shared=attention_share * _sum_weights(attention_products(cases)) + common_weights,
        dense=_sum_weights(dense_products(cases)),
        routed=_sum_weights(common_expert_products(cases)),
        expert=_sum_weights(expert_products(cases)),
        table=cases.vocab * cases.width / cases.tp,
    )


def adapter_weights(cases: Cases) -> Weights:
    """Parameters of the LoRA adapters of the mean layer on a rank; 0 without adapters."""
    attention_share, _ = mixer_shares(cases)
    none = np.zeros(1)
    return Weights(
        shared=attention_share * _sum_weights(attention_adapter_products(cases)),
        dense=_sum_weights(mlp_adapter_products(cases)),
        routed=none,
        expert=none,
        table=none,
    )


def quantised_weights(cases: Cases) -> Weights:
    """Parameters of the matrices that QLoRA keeps in NF4, on a rank: those of attention and of dense MLPs, not the
    embedding and the head; 0 without quantisation."""
    attention_share, _ = mixer_shares(cases)
    none = np.zeros(1)
    return Weights(
        shared=cases.quantised * attention_share * _sum_weights(attention_products(cases)),
        dense=cases.quantised * _sum_weights(dense_products(cases)),
        routed=none,
        expert=none,
        table=none,
    )


def _sum_weights(products: list[Product]) -> Column:
    """Parameters of all products."""
    return sum((product.weights for product in products), np.zeros(1))


def mixer_shares(cases: Cases) -> tuple[Column, Column]:
    """Shares of layers with attention, and with a state space."""
    is_hybrid = cases.space_layers > 0
    return np.where(is_hybrid, cases.attention_layers / cases.layers, 1.0), cases.space_layers / cases.layers


def sublayer_count(cases: Cases) -> Column:
    """Sublayers of a layer, each with its own norm and residual sum: attention and MLP; a layer of a hybrid has only
    one."""
    return np.where(cases.space_layers > 0, 1.0, 2.0)


def layer_kinds(cases: Cases) -> tuple[Column, Column]:
    """Number of layers with a dense MLP, and with experts."""
    mlp_layers = cases.layers - cases.space_layers - cases.attention_layers
    routed = np.where(cases.experts > 0, mlp_layers - cases.dense_layers, 0.0)
    return mlp_layers - routed, routed


def stage_layer_kinds(cases: Cases, stage_layers: Column, first: bool) -> tuple[Column, Column]:
    """Number of layers with a dense MLP, and with experts, of the first or last stage, which has `stage_layers` layers.
    Dense layers come first."""
    dense, routed = layer_kinds(cases)
    if first:
        dense_of_stage = np.minimum(dense, stage_layers)
        kinds = dense_of_stage, stage_layers - dense_of_stage
    else:
        kinds = stage_layers - np.minimum(routed, stage_layers), np.minimum(routed, stage_layers)
    is_hybrid, stage_share = cases.space_layers > 0, stage_layers / cases.layers  # a hybrid's kinds of layers alternate
    return np.where(is_hybrid, dense * stage_share, kinds[0]), np.where(is_hybrid, routed * stage_share, kinds[1])
