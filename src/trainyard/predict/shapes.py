"""The matrix products and the weights of a decoder, on one rank, as columns.

Experts are not divided by `tp` where `ep` spreads them: ranks of `tp` then hold different tokens. Where `ep` is 1, `tp`
divides each expert, as it does a dense MLP (Megatron Core's rule for `expert-tensor-parallel-size`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.cases import Cases, Column


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

    def backward(self) -> tuple[Product, Product]:
        """Of the input's gradient and of the weight's."""
        return (
            Product(self.rows, self.depth, self.columns, self.count),
            Product(self.depth, self.columns, self.rows, self.count),
        )


def attention_products(cases: Cases) -> list[Product]:
    """What surrounds attention in a layer. Where a case has no latent attention, its products of it are empty."""
    tokens, width, tp = cases.tokens, cases.width, cases.tp
    latent = cases.kv_rank > 0
    if not latent.any():
        return [
            Product(tokens, (cases.heads + 2 * cases.kv_heads) * cases.head_dim / tp, width),
            Product(tokens, width, cases.values / tp),
        ]
    down = cases.q_rank > 0
    keys = np.where(latent, cases.heads * (cases.head_dim + cases.value_dim), 0.0) / tp
    plain = (cases.heads + 2 * cases.kv_heads) * cases.head_dim / tp
    return [
        Product(tokens, np.where(latent, cases.queries / tp, plain), np.where(latent & down, cases.q_rank, width)),
        Product(cases.between, np.where(latent, cases.q_rank + cases.kv_rank + cases.rope_dim, 0.0), width),
        Product(tokens, keys, cases.kv_rank),
        Product(tokens, width, cases.values / tp),
    ]


def _mlp(cases: Cases, ffn: Column) -> list[Product]:
    return [
        Product(cases.tokens, (1 + cases.gated) * ffn / cases.tp, cases.width),
        Product(cases.tokens, cases.width, ffn / cases.tp),
    ]


def dense_products(cases: Cases) -> list[Product]:
    """The MLP of a layer without experts."""
    return _mlp(cases, cases.ffn)


def expert_divided(cases: Cases) -> Column:
    """By how much `tp` divides each expert."""
    return np.where(cases.ep > 1, 1.0, cases.tp)


def routed_tokens(cases: Cases) -> Column:
    """That a rank sends to experts, each once for every expert it uses."""
    return cases.tokens / np.where(cases.ep > 1, cases.tp, 1.0) * cases.active


def expert_products(cases: Cases) -> tuple[list[Product], list[Product]]:
    """Those of the experts (grouped), and those that every token takes: the router and the shared experts."""
    local = np.maximum(cases.experts / cases.ep, 1.0)
    rows = routed_tokens(cases) / local
    ffn = cases.expert_ffn / expert_divided(cases)
    grouped = [
        Product(rows, (1 + cases.gated) * ffn, cases.width, local),
        Product(rows, cases.width, ffn, local),
    ]
    return grouped, [Product(cases.between, cases.experts, cases.width),
                     *_mlp(cases, cases.shared_experts * cases.expert_ffn)]  # fmt: skip


def head_product(cases: Cases) -> Product:
    return Product(cases.tokens, cases.vocab / cases.tp, cases.width)


class Weights(NamedTuple):
    """Parameters of one layer on a rank of tp and ep, before data parallelism divides them: those of all layers, what a
    dense layer adds, what one with experts adds for every token, and its experts'. `table`: one of vocabulary x width.
    """

    shared: Column
    dense: Column
    routed: Column
    expert: Column
    table: Column


def weights(cases: Cases) -> Weights:
    grouped, shared = expert_products(cases)
    norms = 2 * cases.width
    return Weights(
        shared=sum((one.weights for one in attention_products(cases)), norms),
        dense=sum((one.weights for one in dense_products(cases)), np.zeros(1)),
        routed=sum((one.weights for one in shared), np.zeros(1)),
        expert=sum((one.weights for one in grouped), np.zeros(1)),
        table=cases.vocab * cases.width / cases.tp,
    )


def layer_kinds(cases: Cases) -> tuple[Column, Column]:
    """How many layers are dense, and how many have experts."""
    routed = np.where(cases.experts > 0, cases.layers - cases.dense_layers, 0.0)
    return cases.layers - routed, routed


def kinds_of(cases: Cases, here: Column, first: bool) -> tuple[Column, Column]:
    """The same of the first stage or of the last, of so many layers: dense ones come first."""
    dense, routed = layer_kinds(cases)
    if first:
        plain = np.minimum(dense, here)
        return plain, here - plain
    return here - np.minimum(routed, here), np.minimum(routed, here)
