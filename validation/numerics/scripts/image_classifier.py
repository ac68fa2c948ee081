"""A small convolutional classifier."""

from __future__ import annotations

import torch.nn.functional as F
from batches import CLASSES
from torch import Tensor, nn

CHANNELS = 16


class ConvNet(nn.Module):
    """`preprocess`: turns the batch of the loader into pixels [sample, channel, row, column]."""

    def __init__(self, preprocess: nn.Module) -> None:
        super().__init__()
        self.preprocess = preprocess
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, CHANNELS) for _ in range(2))
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(self.preprocess(images))
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(F.relu(norm(x)))
        return self.head(x.mean((-2, -1)))
