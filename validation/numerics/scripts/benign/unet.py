"""A small U-Net that predicts the noise in an image (Ho et al. 2020), with attention in the middle."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from benign.decomposed import DecomposedGroupNorm
from benign.settings import Batch, Sizes, Task
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

GROUPS = 4


class Block(nn.Module):
    """A residual block whose features are shifted by the embedded time."""

    def __init__(self, width: int, norm: type[nn.GroupNorm]) -> None:
        super().__init__()
        self.norm, self.time = norm(GROUPS, width), nn.Linear(width, width)
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return x + self.convolution(F.silu(self.norm(x) + self.time(time)[:, :, None, None]))


class PixelAttention(nn.Module):
    """Self-attention between all pixels."""

    def __init__(self, width: int, norm: type[nn.GroupNorm], kernel: str) -> None:
        super().__init__()
        self.norm, self.projections, self.out = (
            norm(GROUPS, width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).mT
        query, key, value = (part[:, None] for part in self.projections(pixels).chunk(3, -1))
        if self.kernel == "flash":
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            mixed = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1) @ value
        return x + self.out(mixed[:, 0]).mT.reshape(x.shape)


class UNet(nn.Module):
    """Down, middle and up blocks are `layers`."""

    def __init__(self, width: int, norm: type[nn.GroupNorm], kernel: str) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.layers = nn.ModuleList(Block(width, norm) for _ in range(4))
        self.attention = PixelAttention(width, norm, kernel)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedded = self.time(torch.stack((time.sin(), time.cos()), dim=1))
        down, middle, after, up = self.layers
        high = down(self.first(x), embedded)
        low = after(self.attention(middle(F.avg_pool2d(high, 2), embedded)), embedded)
        return self.last(up(high + F.interpolate(low, scale_factor=2.0), embedded))


def build(settings: argparse.Namespace, size: Sizes) -> Task:
    norm = DecomposedGroupNorm if settings.norm == "decomposed" else nn.GroupNorm
    model = UNet(size.width, norm, settings.attention)

    def batch(step: int) -> Batch:
        draw = torch.Generator().manual_seed(1000 * size.seed + step)
        images, noise = torch.randn(2, size.samples, 3, 8, 8, generator=draw).cumsum(-1) / 4
        time = torch.rand(size.samples, generator=draw) * torch.pi / 2
        return images, noise, time

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        images, noise, time = batch
        level = time[:, None, None, None]
        return F.mse_loss(model(images * level.cos() + noise * level.sin(), time), noise)

    return Task(model, batch, loss)
