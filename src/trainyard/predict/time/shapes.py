"""The matrix products and the weights of a model, on one rank, as columns.

Experts are not divided by `tp` where `ep` spreads them: ranks of `tp` then hold different tokens. Where `ep` is 1, `tp`
divides each expert, as it does a dense MLP (Megatron Core's rule for `expert-tensor-parallel-size`).
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
        """Of the input's gradient and, where it is `trained`, of the weight's."""
        return (
            Product(self.rows, self.depth, self.columns, self.count),
            Product(self.depth, self.columns, self.rows, self.count * trained),
        )


def attention_products(cases: Cases) -> list[Product]:
    """What surrounds attention in a layer. Where a case has no latent attention, its products of it are empty."""
    tokens, width, tp = cases.tokens, cases.width, cases.tp
    latent = cases.kv_rank > 0
    if not latent.any():
        made = (cases.heads + 2 * cases.kv_heads) * cases.head_dim / tp
        found: list[Product] = []
        for rows, before, after in streams(cases):
            found += [Product(rows, made, width, before), Product(rows, width, cases.values / tp, after)]
        return found
    down = cases.q_rank > 0
    keys = np.where(latent, cases.heads * (cases.head_dim + cases.value_dim), 0.0) / tp
    plain = (cases.heads + 2 * cases.kv_heads) * cases.head_dim / tp
    return [
        Product(tokens, np.where(latent, cases.queries / tp, plain), np.where(latent & down, cases.q_rank, width)),
        Product(cases.between, np.where(latent, cases.q_rank + cases.kv_rank + cases.rope_dim, 0.0), width),
        Product(tokens, keys, cases.kv_rank),
        Product(tokens, width, cases.values / tp),
    ]


def streams(cases: Cases) -> list[tuple[Column, Column, Column]]:
    """(rows, share of layers) of what has weights of its own: all positions, or pictures and text apart. The second
    share is of what comes after attention, which the last layer may leave out for text."""
    apart = cases.doubles / cases.layers
    found = [(cases.tokens, 1 - apart, 1 - apart)]
    if (apart > 0).any():
        text = cases.microbatch * cases.text
        found += [(cases.tokens - text, apart, apart), (text, apart, apart - cases.text_ends / cases.layers)]
    return found


def modulation_product(cases: Cases) -> Product:
    """Scales, shifts and gates of each sample; every rank of tp has all of them."""
    return Product(cases.microbatch, cases.modulated * cases.width, cases.width)


def space_products(cases: Cases) -> list[Product]:
    """What surrounds the scan of a state space. A channel's own step (`step_rank`) and what goes in and out of the
    state then come from the channels, not from the width."""
    inner, tp = cases.space_heads * cases.space_dim, cases.tp
    found = cases.step_rank > 0
    beside = np.where(found, 0.0, 2 * cases.space_groups * cases.state + cases.space_heads)
    steps = np.where(found, cases.step_rank + 2 * cases.state, 0.0)
    return [
        Product(cases.tokens, (2 * inner + beside) / tp, cases.width),
        Product(cases.tokens, steps, inner / tp),
        Product(cases.tokens, np.where(found, inner / tp, 0.0), cases.step_rank),
        Product(cases.tokens, cases.width, inner / tp),
    ]


def convolved(cases: Cases) -> Column:
    """Channels of a state space that its short convolution goes over."""
    return cases.space_heads * cases.space_dim + np.where(
        cases.step_rank > 0, 0.0, 2 * cases.space_groups * cases.state
    )


def _space_vectors(cases: Cases) -> Column:
    """Parameters of a state space that are in no matrix: its convolution, decays, steps, and the norm inside."""
    inner = cases.space_heads * cases.space_dim
    heads = cases.space_heads * np.where(cases.step_rank > 0, cases.state + 2, 3.0)
    return ((cases.kernel + 1) * convolved(cases) + heads + inner) / cases.tp


def adapter_products(cases: Cases) -> list[Product]:
    """Down to the adapters' rank and up again, beside the products before attention and after it."""
    rank, tokens, tp = cases.adapters, cases.tokens, cases.tp
    made = (cases.queries + cases.kv_heads * cases.head_dim + cases.values) / tp
    return [
        Product(tokens, rank, cases.width),
        Product(tokens, made, rank),
        Product(tokens, rank, cases.values / tp),
        Product(tokens, cases.width, rank),
    ]


def all_trained(cases: Cases) -> Column:
    return np.where(cases.adapters > 0, 0.0, 1.0)


def _mlp(cases: Cases, ffn: Column, rows: Column, share: Column | float = 1.0) -> list[Product]:
    return [
        Product(rows, (1 + cases.gated) * ffn / cases.tp, cases.width, share),
        Product(rows, cases.width, ffn / cases.tp, share),
    ]


def dense_products(cases: Cases) -> list[Product]:
    """The MLP of a layer without experts."""
    return [one for rows, _, share in streams(cases) for one in _mlp(cases, cases.ffn, rows, share)]


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
    ffn, width = cases.expert_ffn / expert_divided(cases), expert_width(cases)
    grouped = [
        Product(rows, (1 + cases.gated) * ffn, width, local),
        Product(rows, width, ffn, local),
    ]
    every = [
        Product(cases.between, cases.experts, cases.width),
        *_mlp(cases, cases.shared_experts * cases.expert_ffn, cases.tokens),
    ]
    if (cases.expert_width > 0).any():
        every += [
            Product(cases.between, cases.expert_width, cases.width),
            Product(cases.between, cases.width, cases.expert_width),
        ]
    return grouped, every


def expert_width(cases: Cases) -> Column:
    """Of what is sent to experts."""
    return np.where(cases.expert_width > 0, cases.expert_width, cases.width)


def head_rows(cases: Cases) -> Column:
    """Of a micro-batch that the head is for."""
    return np.where(cases.head_rows > 0, cases.microbatch * cases.head_rows, cases.tokens)


def head_product(cases: Cases) -> Product:
    return Product(head_rows(cases), cases.vocab / cases.tp, cases.width)


def entry_product(cases: Cases) -> Product:
    """What makes a sample's data as wide as the model, whole on every rank of tp; empty where a table is looked up."""
    return Product(cases.tokens, cases.width, cases.entry / cases.seq_len)


class Weights(NamedTuple):
    """Parameters of one layer on a rank of tp and ep, before data parallelism divides them: those of all layers (the
    mean over attention and state spaces), what a dense layer adds, what one with experts adds for every token, and its
    experts'. `table`: one of vocabulary x width.
    """

    shared: Column
    dense: Column
    routed: Column
    expert: Column
    table: Column

    def trained(self, cases: Cases) -> Weights:
        """Those of them that are: adapters alone where there are some."""
        every, few = all_trained(cases), _counted(adapter_products(cases)) * mixers(cases)[0]
        return Weights(np.where(cases.adapters > 0, few, self.shared), *(part * every for part in self[1:]))


def weights(cases: Cases) -> Weights:
    grouped, shared = expert_products(cases)
    attention, space = mixers(cases)
    others = parts(cases) * cases.width + cases.vectors + modulation_product(cases).weights
    if (space > 0).any():
        others = others + space * (_counted(space_products(cases)) + _space_vectors(cases))
    return Weights(
        shared=attention * _counted(attention_products(cases)) + others,
        dense=_counted(dense_products(cases)),
        routed=_counted(shared),
        expert=_counted(grouped),
        table=cases.vocab * cases.width / cases.tp,
    )


def _counted(some: list[Product]) -> Column:
    return sum((one.weights for one in some), np.zeros(1))


def mixers(cases: Cases) -> tuple[Column, Column]:
    """Shares of layers that have attention, and a state space."""
    alone = cases.spaces > 0
    return np.where(alone, cases.attentions / cases.layers, 1.0), cases.spaces / cases.layers


def parts(cases: Cases) -> Column:
    """That a layer has, each with a norm and a sum of its own: attention and an MLP, or one of a hybrid's."""
    return np.where(cases.spaces > 0, 1.0, 2.0)


def layer_kinds(cases: Cases) -> tuple[Column, Column]:
    """How many layers have a dense MLP, and how many have experts."""
    either = cases.layers - cases.spaces - cases.attentions
    routed = np.where(cases.experts > 0, either - cases.dense_layers, 0.0)
    return either - routed, routed


def kinds_of(cases: Cases, here: Column, first: bool) -> tuple[Column, Column]:
    """The same of the first stage or of the last, of so many layers: dense ones come first."""
    dense, routed = layer_kinds(cases)
    if first:
        plain = np.minimum(dense, here)
        found = plain, here - plain
    else:
        found = here - np.minimum(routed, here), np.minimum(routed, here)
    even, share = cases.spaces > 0, here / cases.layers  # a hybrid has its kinds all along
    return np.where(even, dense * share, found[0]), np.where(even, routed * share, found[1])
