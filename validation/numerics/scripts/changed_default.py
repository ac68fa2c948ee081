"""A new version of a library, whose resize has another default.

torchvision 0.17 changed the default of `antialias` from None to True (pytorch/vision#7160). `Resize` is a copy of the
part of the library that matters here; the faulty variant has the new version.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from batches import image_batch
from command_line import parse_options
from image_classifier import ConvNet
from torch import Tensor, nn
from training_loop import train

STORED, USED = 24, 12
"""Rows and columns of stored images, and of those that the model gets."""
DEFAULTS = {"0.16": False, "0.17": True}
"""Version of the library -> default of `antialias`."""


class Resize(nn.Module):
    def __init__(self, size: int, version: str) -> None:
        super().__init__()
        self.size, self.antialias = size, DEFAULTS[version]

    def forward(self, images: Tensor) -> Tensor:
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=self.antialias)


def main() -> None:
    options = parse_options(__doc__)
    model = ConvNet(Resize(USED, "0.17" if options.faulty else "0.16"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = image_batch(options.seed, step, size=STORED)
        return F.cross_entropy(model(batch.pixels), batch.classes)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
