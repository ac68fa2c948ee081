"""A small training, whose operations are known, for tests of the recorder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

CLASSES = 11


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(gelu(self.up(self.norm(x)))))


class Classifier(nn.Module):
    def __init__(self, width: int = 8, depth: int = 2, checkpoints: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, width), nn.Linear(width, CLASSES)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.checkpoints = checkpoints

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(x)


def train(
    steps: int = 2, model: nn.Module | None = None, wrap: Callable[[nn.Module], Any] = lambda model: model
) -> list[float]:
    """The losses of some steps from a fixed seed."""
    torch.manual_seed(0)
    model = wrap(model or Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(steps):
        tokens = torch.randint(CLASSES, (4, 6))
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
