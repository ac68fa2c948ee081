"""A residual convolutional classifier with batch norms."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from benign.decomposed import MatrixConv2d
from benign.settings import Batch, Sizes, Task
from torch import Tensor, nn

CLASSES = 10


class Block(nn.Module):
    def __init__(self, width: int, convolution: type[nn.Conv2d]) -> None:
        super().__init__()
        self.norm, self.convolution = nn.BatchNorm2d(width), convolution(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.convolution(F.relu(self.norm(x)))


class ConvNet(nn.Module):
    def __init__(self, width: int, convolution: type[nn.Conv2d]) -> None:
        super().__init__()
        self.stem = convolution(3, width, 3, padding=1)
        self.layers = nn.ModuleList(Block(width, convolution) for _ in range(3))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((-2, -1)))


def build(settings: argparse.Namespace, size: Sizes) -> Task:
    model = ConvNet(size.width, MatrixConv2d if settings.convolution == "matrix" else nn.Conv2d)

    def batch(step: int) -> Batch:
        draw = torch.Generator().manual_seed(1000 * size.seed + step)
        images = torch.randn(size.samples, 3, size.length, size.length, generator=draw)
        return images, torch.randint(CLASSES, (size.samples,), generator=draw)

    return Task(model, batch, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
