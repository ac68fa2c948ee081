"""A small decoder-only transformer with RMS norms, rotary embeddings and a gated feed-forward network.

Shapes: B samples, S positions, H heads, D dimensions of a head, W width.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from batches import VOCABULARY
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN = 32, 4, 64


class RMSNorm(nn.Module):
    def __init__(self, width: int = WIDTH, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021). `angle_dtype`: dtype of positions, frequencies and angles."""

    def __init__(self, angle_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.angle_dtype = angle_dtype or torch.promote_types(torch.get_default_dtype(), torch.float32)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates `x` [B, H, S, D] by the angles of `positions` [S]."""
        half = x.shape[-1] // 2
        frequencies = 10_000.0 ** -(torch.arange(half, dtype=self.angle_dtype) / half)
        angles = positions.to(self.angle_dtype)[:, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x[..., :half], x[..., half:]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention. `dropout`: of the attention weights; `drops_in_eval`: also outside of training."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.rotary = Rotary()
        self.scale = (WIDTH // HEADS) ** -0.5
        self.dropout = dropout
        self.drops_in_eval = False

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        query, key, value = (
            linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (self.wq, self.wk, self.wv)
        )
        scores = self.rotary(query, positions) @ self.rotary(key, positions).transpose(-1, -2) * self.scale
        future = positions[:, None] < positions
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        weights = F.dropout(weights, self.dropout, training=self.training or self.drops_in_eval)
        return self.wo((weights @ value).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, hidden, bias=False), nn.Linear(WIDTH, hidden, bias=False)
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, dropout: float = 0.0, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(), Attention(dropout)
        self.mlp_norm, self.mlp = RMSNorm(), FeedForward(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self, layers: int = 2, dropout: float = 0.0, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(dropout, hidden) for _ in range(layers))
        self.norm = RMSNorm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def layer(self, number: int) -> Layer:
        return cast(Layer, self.layers[number])

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """The normalised output of the last layer, [B, S, W]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits [B, S, token] of `tokens` [B, S]."""
        return self.output(self.hidden_states(tokens))
