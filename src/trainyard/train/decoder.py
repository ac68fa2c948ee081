"""A decoder-only transformer: RMSNorm before each part, rotary positions, grouped-query causal attention, SwiGLU.

The head is not tied to the embedding. No biases, no dropout. Weights are float32 (see layers.py).

Shapes: B sequences, T positions, D width, F gated width, H query heads, K key/value heads, C head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job import Model
from trainyard.train.layers import Embedding, Linear, RmsNorm
from trainyard.train.span import span


class Core(nn.Module):
    """Causal attention over whole sequences; a module, so that context parallelism can put its own in this place."""

    def forward(self, q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
        grouped = q_BHTC.shape[1] != k_BKTC.shape[1]
        if grouped and q_BHTC.is_cuda and q_BHTC.dtype == torch.float32:
            # The one fused kernel for float32 there does not know grouped heads.
            k_BKTC, v_BKTC = (x.repeat_interleave(q_BHTC.shape[1] // x.shape[1], dim=1) for x in (k_BKTC, v_BKTC))
            grouped = False
        return F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, is_causal=True, enable_gqa=grouped)


class Attention(nn.Module):
    """Of the heads whose columns its matrices hold: all, or under tensor parallelism this rank's."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        self.q = Linear(model.width, model.heads * model.head_dim)
        self.k = Linear(model.width, model.kv_heads * model.head_dim)
        self.v = Linear(model.width, model.kv_heads * model.head_dim)
        self.core = Core()
        self.out = Linear(model.heads * model.head_dim, model.width)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        q_BHTC = rotate(self._heads(self.q(x_BTD)), cos_TC, sin_TC)
        k_BKTC = rotate(self._heads(self.k(x_BTD)), cos_TC, sin_TC)
        y_BHTC = self.core(q_BHTC, k_BKTC, self._heads(self.v(x_BTD)))
        return self.out(y_BHTC.transpose(1, 2).flatten(2))

    def _heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.unflatten(2, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = Linear(model.width, model.ffn)
        self.up = Linear(model.width, model.ffn)
        self.down = Linear(model.ffn, model.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.name = name
        self.attention_norm = RmsNorm(model.width, model.norm_eps)
        self.attention = Attention(model)
        self.mlp_norm = RmsNorm(model.width, model.norm_eps)
        self.mlp = Mlp(model)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        with span(self.name, ".attention"):
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), cos_TC, sin_TC)
        with span(self.name, ".mlp"):
            return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Decoder(nn.Module):
    """Tokens (B, T) to logits (B, T, V), or a pipeline stage of that: `layers` of it, without what is not `first` or
    `last`, from tokens or hidden states (B, T, D) to hidden states or logits. Names are the whole model's.

    `positions`: the place in its sequence of each token this rank sees, where those are not 0 to T - 1.
    """

    def __init__(
        self, model: Model, dtype: torch.dtype, layers: Iterable[int], first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        self.turning = (model.head_dim, model.rope_base)
        self.positions: Tensor | None = None
        self.embed = Embedding(model.vocab, model.width, dtype) if first else None
        self.layers = nn.ModuleDict({str(layer): Block(model, f"layers.{layer}") for layer in layers})
        self.norm = RmsNorm(model.width, model.norm_eps) if last else None
        self.head = Linear(model.width, model.vocab) if last else None

    def forward(self, x: Tensor) -> Tensor:
        positions_T = torch.arange(x.shape[1], device=x.device) if self.positions is None else self.positions
        if self.embed is not None:
            with span("embed"):
                x = self.embed(x)
        cos_TC, sin_TC = rope_table(positions_T, *self.turning)
        for layer in self.layers.values():
            x = layer(x, cos_TC, sin_TC)
        if self.norm is not None:
            with span("norm"):
                x = self.norm(x)
        if self.head is not None:
            with span("head"):
                x = self.head(x)
        return x


def rope_table(positions_T: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (T, C) float32, both halves of C alike (Su et al. 2021, arXiv:2104.09864)."""
    rate = base ** (-torch.arange(0, head_dim, 2, device=positions_T.device, dtype=torch.float32) / head_dim)
    angle = torch.outer(positions_T.float(), rate).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x_BHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Turns channel c with channel c + C/2 by its position's angle, in float32."""
    x = x_BHTC.float()
    left, right = x.chunk(2, dim=-1)
    return (x * cos_TC + torch.cat((-right, left), dim=-1) * sin_TC).to(x_BHTC.dtype)
