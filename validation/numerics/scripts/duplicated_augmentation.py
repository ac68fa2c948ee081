"""All ranks augment their images with the same random numbers.

Random generators of loaders that have equal seeds: pytorch/pytorch#5059, facebookresearch/fairseq#1383 and many
others. The crops are computed with numpy, as loaders do. Run with torchrun, two ranks: those of rank 1 are wrong.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from batches import image_batch
from collectives import process_group
from command_line import parse_options
from image_classifier import ConvNet
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training_loop import train

STORED, USED = 18, 12
"""Rows and columns of stored images, and of their crops."""


def augment(pixels: Tensor, draw: np.random.Generator) -> Tensor:
    """A random crop of each image."""
    images = pixels.numpy()
    corners = draw.integers(STORED - USED + 1, size=(len(images), 2))
    crops = [image[:, row : row + USED, column : column + USED] for image, (row, column) in zip(images, corners)]
    return torch.from_numpy(np.stack(crops))


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        draw = np.random.default_rng([options.seed, 0 if options.faulty else rank])
        model = DistributedDataParallel(ConvNet(nn.Identity()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

        def loss(step: int) -> Tensor:
            batch = image_batch(options.seed, step, size=STORED)
            pixels, classes = batch.pixels.chunk(ranks)[rank], batch.classes.chunk(ranks)[rank]
            return F.cross_entropy(model(augment(pixels, draw)), classes)

        train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
