"""The matrices of a decoder, in the order in which a token meets them, and the parameters they come to. No torch here.

A matrix says how tensor parallelism divides it: by columns (each rank has some of the results), by rows (each rank has
some of the operands, and results are summed) or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainyard.job import Model


class Matrix(NamedTuple):
    """(wide, high): from `wide` values a token to `high`. `copies` of it are experts, `uses` of which a token takes."""

    wide: int
    high: int
    split: Literal["columns", "rows", "none"] = "none"
    copies: int = 1
    uses: int = 1
    bias: bool = False
    float32: bool = False
    """Whether it is multiplied in float32 where the rest is in fewer bits."""
    linear: bool = True
    """Whether it is a linear layer of a block: what a float8 recipe multiplies in float8."""


class AlikeLayers(NamedTuple):
    """Layers `first` to `stop` - 1 are alike. `ends`: whether the last product's result is needed by no gradient, so
    that a pass that recomputes the layer stops before it."""

    first: int
    stop: int
    matrices: Sequence[Matrix]
    ends: bool

    @property
    def layers(self) -> int:
        return self.stop - self.first


def layers(model: Model) -> list[AlikeLayers]:
    """The dense layers, then those with experts, as far as there are any."""
    dense = min(model.dense_layers, model.layers) if model.experts else model.layers
    both = attention(model)
    kinds = [
        AlikeLayers(0, dense, [*both, *mlp(model, model.ffn)], ends=True),
        # What an expert gives is weighed, and the gradient of its weight needs it; what all share is not.
        AlikeLayers(dense, model.layers, [*both, *experts(model)], ends=model.shared_experts > 0),
    ]
    return [kind for kind in kinds if kind.layers]


def attention(model: Model) -> list[Matrix]:
    """q, k, v, out; of latent attention q down and up, keys and values down and up, out."""
    width, heads = model.width, model.heads
    if not model.kv_rank:
        biased = model.bias != "none"
        q = Matrix(width, heads * model.head_dim, "columns", bias=biased)
        kv = Matrix(width, model.kv_heads * model.head_dim, "columns", bias=biased)
        return [q, kv, kv, Matrix(q.high, width, "rows", bias=model.bias == "all")]
    return [
        *([Matrix(width, model.q_rank)] if model.q_rank else []),
        Matrix(model.q_rank or width, heads * (model.head_dim + model.rope_dim), "columns"),
        Matrix(width, model.kv_rank + model.rope_dim),
        Matrix(model.kv_rank, heads * (model.head_dim + model.value_dim), "columns"),
        Matrix(heads * model.value_dim, width, "rows"),
    ]


def mlp(model: Model, ffn: int) -> list[Matrix]:
    """Gate (of SwiGLU), up, down."""
    biased = model.bias == "all"
    up = Matrix(model.width, ffn, "columns", bias=biased)
    return [*([up] if model.mlp == "swiglu" else []), up, Matrix(ffn, model.width, "rows", bias=biased)]


def experts(model: Model) -> list[Matrix]:
    """The router, the experts (SwiGLU), then the MLP that all tokens share: one, as wide as its experts together."""
    up = Matrix(model.width, model.expert_ffn, "columns", copies=model.experts, uses=model.active, linear=False)
    down = Matrix(model.expert_ffn, model.width, "rows", copies=model.experts, uses=model.active, linear=False)
    shared = mlp(model, model.shared_experts * model.expert_ffn) if model.shared_experts else []
    return [Matrix(model.width, model.experts, float32=True, linear=False), up, up, down, *shared]


def head(model: Model) -> Matrix:
    return Matrix(model.width, model.vocab, "columns", linear=False)


def parameters(model: Model, length: int = 0) -> int:
    """Of the whole model. `length`: the longest sequence, whose places have a row each where positions are learned."""
    linear = sum(
        kind.layers * matrix.copies * (matrix.wide + matrix.bias) * matrix.high
        for kind in layers(model)
        for matrix in kind.matrices
    )
    tables = model.vocab * (1 if model.tied else 2) + (length if model.position == "learned" else 0)
    norm = model.width * (2 if model.norm == "layer" and model.bias == "all" else 1)
    inner = model.q_rank + model.kv_rank if model.kv_rank else 2 * model.head_dim * model.qk_norm
    return linear + tables * model.width + (2 * model.layers + 1) * norm + model.layers * inner
