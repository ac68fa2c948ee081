"""The matrices of a decoder in forward order, and its parameter count. Needs no torch.

Each matrix has its tensor-parallel split: by columns (each rank computes part of the output), by rows (each rank has
part of the input, and outputs are summed) or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from trainyard.model import Model


class Matrix(NamedTuple):
    """A (width_in, width_out) matrix, from `width_in` to `width_out` values per token. `split`: how tp divides it, by
    columns (outputs), by rows (inputs) or not. `expert_count`: its copies, one per expert; a token uses
    `experts_per_token` of them."""

    width_in: int
    width_out: int
    split: Literal["columns", "rows", "none"] = "none"
    expert_count: int = 1
    experts_per_token: int = 1
    bias: bool = False
    float32: bool = False
    """Whether it is multiplied in float32 even if the model is in lower precision."""
    linear: bool = True
    """Whether it is a linear layer of a block, which a float8 recipe multiplies in float8."""


class LayerGroup(NamedTuple):
    """Identical layers, from layer `first` to layer `stop` - 1. `skips_last_product`: no gradient needs the output of
    the last matrix product, so that recomputation stops before it."""

    first: int
    stop: int
    matrices: Sequence[Matrix]
    skips_last_product: bool

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.stop - self.first


def layers(model: Model) -> list[LayerGroup]:
    """The dense layers, then those with experts; without empty groups."""
    dense_layers = min(model.dense_layers, model.layers) if model.experts else model.layers
    attention_matrices = attention(model)
    groups = [
        LayerGroup(
            first=0,
            stop=dense_layers,
            matrices=[*attention_matrices, *mlp(model, model.ffn_hidden_size)],
            skips_last_product=True,
        ),
        # The gradient of a gate needs the expert's output; the shared experts have no gate.
        LayerGroup(
            first=dense_layers,
            stop=model.layers,
            matrices=[*attention_matrices, *experts(model)],
            skips_last_product=model.shared_experts > 0,
        ),
    ]
    return [group for group in groups if group.layers]


def attention(model: Model) -> list[Matrix]:
    """The matrices of attention in forward order: q, k, v, out.

    With latent attention (`kv_lora_rank` channels of compressed keys and values): q down (if q is compressed) and up,
    keys and values down and up, out. There `qk_rope_head_dim` channels of each head carry the position and
    `head_dim` do not; values have `v_head_dim`.
    """
    width, heads = model.hidden_size, model.heads
    if not model.kv_lora_rank:
        biased = model.bias != "none"
        q = Matrix(width_in=width, width_out=heads * model.head_dim, split="columns", bias=biased)
        kv = Matrix(width_in=width, width_out=model.kv_heads * model.head_dim, split="columns", bias=biased)
        return [q, kv, kv, Matrix(width_in=q.width_out, width_out=width, split="rows", bias=model.bias == "all")]
    return [
        *([Matrix(width_in=width, width_out=model.q_lora_rank)] if model.q_lora_rank else []),
        Matrix(
            width_in=model.q_lora_rank or width,
            width_out=heads * (model.head_dim + model.qk_rope_head_dim),
            split="columns",
        ),
        Matrix(width_in=width, width_out=model.kv_lora_rank + model.qk_rope_head_dim),
        Matrix(width_in=model.kv_lora_rank, width_out=heads * (model.head_dim + model.v_head_dim), split="columns"),
        Matrix(width_in=heads * model.v_head_dim, width_out=width, split="rows"),
    ]


def mlp(model: Model, inner_width: int) -> list[Matrix]:
    """The matrices of an MLP in forward order: gate (SwiGLU only, of the same size as up), up, down. `inner_width`:
    values per token between up and down."""
    biased = model.bias == "all"
    up = Matrix(width_in=model.hidden_size, width_out=inner_width, split="columns", bias=biased)
    return [
        *([up] if model.mlp == "swiglu" else []),
        up,
        Matrix(width_in=inner_width, width_out=model.hidden_size, split="rows", bias=biased),
    ]


def experts(model: Model) -> list[Matrix]:
    """The matrices of a layer with experts: the router, the experts (gate, up, down), and the shared experts as one MLP
    of their total width."""
    up = Matrix(
        width_in=model.hidden_size,
        width_out=model.moe_ffn_hidden_size,
        split="columns",
        expert_count=model.experts,
        experts_per_token=model.top_k,
        linear=False,
    )
    down = Matrix(
        width_in=model.moe_ffn_hidden_size,
        width_out=model.hidden_size,
        split="rows",
        expert_count=model.experts,
        experts_per_token=model.top_k,
        linear=False,
    )
    shared = mlp(model, model.shared_experts * model.moe_ffn_hidden_size) if model.shared_experts else []
    return [Matrix(model.hidden_size, model.experts, float32=True, linear=False), up, up, down, *shared]


def head(model: Model) -> Matrix:
    """The output projection, from the hidden state to the logits of the vocabulary."""
    return Matrix(width_in=model.hidden_size, width_out=model.vocab, split="columns", linear=False)


def parameters(model: Model, max_length: int = 0) -> int:
    """Parameter count of the model. `max_length`: the maximum sequence length in tokens, one row each if positions are
    learned."""
    matrix_parameters = sum(
        group.layers * matrix.expert_count * (matrix.width_in + matrix.bias) * matrix.width_out
        for group in layers(model)
        for matrix in group.matrices
    )
    # The embedding and, unless tied, the head; learned positions.
    table_rows = model.vocab * (1 if model.tie_word_embeddings else 2) + (
        max_length if model.position == "learned" else 0
    )
    norm_parameters = model.hidden_size * (2 if model.norm == "layer" and model.bias == "all" else 1)
    attention_norm_parameters = (
        model.q_lora_rank + model.kv_lora_rank if model.kv_lora_rank else 2 * model.head_dim * model.qk_norm
    )
    return (
        matrix_parameters
        + table_rows * model.hidden_size
        + (2 * model.layers + 1) * norm_parameters
        + model.layers * attention_norm_parameters
    )
