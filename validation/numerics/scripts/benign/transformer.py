"""A decoder with layer norms and learned positions, on samples of different lengths.

Shapes: B samples, S positions, H heads, D dimensions of a head, W width.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from benign.decomposed import DecomposedLayerNorm
from benign.settings import Batch, Sizes, Task
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

VOCABULARY, LAYERS, HEAD_DIM = 48, 2, 8
IGNORED = -100
KERNELS = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


class Attention(nn.Module):
    def __init__(self, width: int, kernel: str) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.kernel = kernel

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        """`hidden`: [S, S], whether a position must not see another one; None: causal."""
        query, key, value = (
            linear(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        if self.kernel in KERNELS:
            with sdpa_kernel(KERNELS[self.kernel]):
                mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            if hidden is None:
                hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (query @ key.mT * HEAD_DIM**-0.5).masked_fill(hidden, float("-inf"))
            mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, kernel: str, norm: type[nn.LayerNorm]) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(width), Attention(width, kernel)
        self.mlp_norm, self.up, self.down = norm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), hidden)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, length: int, kernel: str, norm: type[nn.LayerNorm]) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, kernel, norm) for _ in range(LAYERS))
        self.norm, self.output = norm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor | None = None) -> Tensor:
        x = self.embedding(tokens) + self.positions(positions)
        for layer in self.layers:
            x = layer(x, hidden)
        return self.output(self.norm(x))


def build(settings: argparse.Namespace, size: Sizes) -> Task:
    norm = DecomposedLayerNorm if settings.norm == "decomposed" else nn.LayerNorm
    model = Transformer(size.width, size.length, settings.attention, norm)

    def batch(step: int) -> Batch:
        draw = torch.Generator().manual_seed(1000 * size.seed + step)
        tokens = torch.randint(VOCABULARY, (size.samples, size.length + 1), generator=draw)
        tokens[:, 1::2] = (3 * tokens[:, :-1:2] + 1)[:, : tokens[:, 1::2].shape[1]] % VOCABULARY
        # Equal numbers of labels in each quarter of the batch, so that micro-batches can be averaged.
        lengths = torch.tensor([size.length, size.length - 3]).repeat(size.samples // 2)
        labels = torch.where(torch.arange(size.length) < lengths[:, None], tokens[:, 1:], IGNORED)
        return tokens[:, :-1], labels, lengths

    def padded_loss(model: nn.Module, batch: Batch) -> Tensor:
        tokens, labels, _ = batch
        return _mean_loss(model(tokens, torch.arange(tokens.shape[1]).expand_as(tokens)), labels)

    def packed_loss(model: nn.Module, batch: Batch) -> Tensor:
        tokens, labels, lengths = batch
        kept = torch.arange(tokens.shape[1]) < lengths[:, None]
        sample, position = kept.nonzero(as_tuple=True)
        hidden = (sample[:, None] != sample) | (position[:, None] < position)
        return _mean_loss(model(tokens[kept][None], position[None], hidden), labels[kept][None])

    return Task(model, batch, packed_loss if settings.packed else padded_loss)


def _mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
