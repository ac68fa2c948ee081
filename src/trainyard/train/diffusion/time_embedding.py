"""Sinusoidal embeddings of the diffusion time."""

from __future__ import annotations

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.model.layers import Linear

MAX_PERIOD = 10_000.0


def sinusoids(numbers_B: Tensor, width: int) -> Tensor:
    """Sinusoidal embedding (B, width) float32: cosines, then sines, of falling frequency (Vaswani et al. 2017,
    arXiv:1706.03762, section 3.5)."""
    frequency_count = width // 2
    rates = torch.exp(
        -log(MAX_PERIOD) / frequency_count * torch.arange(frequency_count, device=numbers_B.device, dtype=torch.float32)
    )
    angles = numbers_B.float()[:, None] * rates
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class Embedder(nn.Module):
    """A two-layer MLP that projects a vector to the model's width."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.first = Linear(width_in, width, bias=True)
        self.second = Linear(width, width, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.silu(self.first(x)))
