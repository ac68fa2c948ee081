"""The matrices of a decoder in forward order, and its parameter count. Needs no torch.

Each matrix has its tensor-parallel split: by columns (each rank computes part of the output), by rows (each rank has
part of the input, and outputs are summed) or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainyard.job import Model


class Matrix(NamedTuple):
    """A (wide, high) matrix, from `wide` to `high` values per token. `copies`: experts; `uses`: experts per token."""

    wide: int
    high: int
    split: Literal["columns", "rows", "none"] = "none"
    copies: int = 1
    uses: int = 1
    bias: bool = False
    float32: bool = False
    """Whether it is multiplied in float32 even if the model is in lower precision."""
    linear: bool = True
    """Whether it is a linear layer of a block, which a float8 recipe multiplies in float8."""


class LayerGroup(NamedTuple):
    """Identical layers, from `first` to `stop` - 1. `ends`: whether no gradient needs the last product's output, so
    that recomputation stops before it."""

    first: int
    stop: int
    matrices: Sequence[Matrix]
    ends: bool

    @property
    def layers(self) -> int:
        return self.stop - self.first


def layers(model: Model) -> list[LayerGroup]:
    """The dense layers, then those with experts; without empty groups."""
    dense = min(model.dense_layers, model.layers) if model.experts else model.layers
    attention_matrices = attention(model)
    kinds = [
        LayerGroup(first=0, stop=dense, matrices=[*attention_matrices, *mlp(model, model.ffn_hidden_size)], ends=True),
        # The gradient of a gate needs the expert's output; the shared experts have no gate.
        LayerGroup(
            first=dense,
            stop=model.layers,
            matrices=[*attention_matrices, *experts(model)],
            ends=model.shared_experts > 0,
        ),
    ]
    return [kind for kind in kinds if kind.layers]


def attention(model: Model) -> list[Matrix]:
    """q, k, v, out; for latent attention q down and up, keys and values down and up, out."""
    width, heads = model.hidden_size, model.heads
    if not model.kv_lora_rank:
        biased = model.bias != "none"
        q = Matrix(wide=width, high=heads * model.head_dim, split="columns", bias=biased)
        kv = Matrix(wide=width, high=model.kv_heads * model.head_dim, split="columns", bias=biased)
        return [q, kv, kv, Matrix(wide=q.high, high=width, split="rows", bias=model.bias == "all")]
    return [
        *([Matrix(wide=width, high=model.q_lora_rank)] if model.q_lora_rank else []),
        Matrix(wide=model.q_lora_rank or width, high=heads * (model.head_dim + model.rope_dim), split="columns"),
        Matrix(wide=width, high=model.kv_lora_rank + model.rope_dim),
        Matrix(wide=model.kv_lora_rank, high=heads * (model.head_dim + model.value_dim), split="columns"),
        Matrix(wide=heads * model.value_dim, high=width, split="rows"),
    ]


def mlp(model: Model, ffn: int) -> list[Matrix]:
    """Gate (SwiGLU only), up, down."""
    biased = model.bias == "all"
    up = Matrix(wide=model.hidden_size, high=ffn, split="columns", bias=biased)
    return [
        *([up] if model.mlp == "swiglu" else []),
        up,
        Matrix(wide=ffn, high=model.hidden_size, split="rows", bias=biased),
    ]


def experts(model: Model) -> list[Matrix]:
    """The router, the experts (SwiGLU) and the shared experts, as one MLP of their total width."""
    up = Matrix(
        wide=model.hidden_size,
        high=model.moe_ffn_hidden_size,
        split="columns",
        copies=model.experts,
        uses=model.top_k,
        linear=False,
    )
    down = Matrix(
        wide=model.moe_ffn_hidden_size,
        high=model.hidden_size,
        split="rows",
        copies=model.experts,
        uses=model.top_k,
        linear=False,
    )
    shared = mlp(model, model.shared_experts * model.moe_ffn_hidden_size) if model.shared_experts else []
    return [Matrix(model.hidden_size, model.experts, float32=True, linear=False), up, up, down, *shared]


def head(model: Model) -> Matrix:
    return Matrix(wide=model.hidden_size, high=model.vocab, split="columns", linear=False)


def parameters(model: Model, length: int = 0) -> int:
    """Parameter count of the model. `length`: the maximum sequence length, one row each if positions are learned."""
    linear = sum(
        kind.layers * matrix.copies * (matrix.wide + matrix.bias) * matrix.high
        for kind in layers(model)
        for matrix in kind.matrices
    )
    tables = model.vocab * (1 if model.tied else 2) + (length if model.position == "learned" else 0)
    norm = model.hidden_size * (2 if model.norm == "layer" and model.bias == "all" else 1)
    inner = model.q_lora_rank + model.kv_lora_rank if model.kv_lora_rank else 2 * model.head_dim * model.qk_norm
    return linear + tables * model.hidden_size + (2 * model.layers + 1) * norm + model.layers * inner
