"""Images with the channel last that are viewed, not permuted, as images with the channel first.

The usual mistake when a loader gives NHWC and the model expects NCHW: the shape is right and the values are the same,
in another order. A published case: opencv/opencv#22448, where a reshape took data in NHWC for NCHW.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from batches import image_batch
from command_line import parse_options
from image_classifier import ConvNet
from torch import Tensor, nn
from training_loop import train


class ChannelsFirst(nn.Module):
    """[sample, row, column, channel] -> [sample, channel, row, column]. `views`: by a view of the memory."""

    def __init__(self, views: bool) -> None:
        super().__init__()
        self.views = views

    def forward(self, images: Tensor) -> Tensor:
        samples, rows, columns, channels = images.shape
        return images.view(samples, channels, rows, columns) if self.views else images.permute(0, 3, 1, 2).contiguous()


def main() -> None:
    options = parse_options(__doc__)
    model = ConvNet(ChannelsFirst(views=options.faulty))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(step: int) -> Tensor:
        batch = image_batch(options.seed, step)
        return F.cross_entropy(model(batch.pixels.permute(0, 2, 3, 1).contiguous()), batch.classes)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
