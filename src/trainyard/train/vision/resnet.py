"""ResNet with bottleneck blocks (He et al. 2015, arXiv:1512.03385, table 1), with the stride in the 3x3 convolutions
(the v1.5 variant of torchvision).

Shapes: B images, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.model.layers import Linear
from trainyard.train.step.profiler_span import span
from trainyard.train.vision.convolutions import BatchNorm, Conv2d, arrange, forget_statistics, update_running_statistics
from trainyard.train.vision.vision_sizes import EXPANSION, ResNet


class Bottleneck(nn.Module):
    """A bottleneck block with `width` inner and `EXPANSION` times as many output channels."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        """1 x 1, 3 x 3 and 1 x 1 convolutions from `channels_in` to `EXPANSION` x `width` channels; a 1 x 1 one on the
        skip path if the shape changes. `stride`: of the 3 x 3 convolution."""
        super().__init__()
        channels_out = EXPANSION * width
        self.conv1 = Conv2d(channels_in, width, 1, bias=False)
        self.norm1 = BatchNorm(width)
        self.conv2 = Conv2d(width, width, 3, stride, bias=False)
        self.norm2 = BatchNorm(width)
        self.conv3 = Conv2d(width, channels_out, 1, bias=False)
        self.norm3 = BatchNorm(channels_out)
        shape_changes = stride != 1 or channels_in != channels_out
        self.skip = Conv2d(channels_in, channels_out, 1, stride, bias=False) if shape_changes else None
        self.skip_norm = BatchNorm(channels_out) if shape_changes else None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Maps (B, channels in, H, W) to (B, channels out, H / stride, W / stride)."""
        y_BCHW = F.relu(self.norm1(self.conv1(x_BCHW)))
        y_BCHW = F.relu(self.norm2(self.conv2(y_BCHW)))
        y_BCHW = self.norm3(self.conv3(y_BCHW))
        if self.skip is not None and self.skip_norm is not None:
            x_BCHW = self.skip_norm(self.skip(x_BCHW))
        return F.relu(x_BCHW + y_BCHW)


class ResidualNetwork(nn.Module):
    """Maps images (B, C, H, W) to logits (B, classes). Implements `UpdatesAfterStep` for batch norm statistics."""

    def __init__(self, sizes: ResNet, dtype: torch.dtype, channels_last: bool | None = None) -> None:
        """The stem, then `stages[i]` blocks of width x 2^i, the first of each later stage with stride 2, then the
        head. `channels_last`: the memory layout of activations; None: channels-last on an accelerator only."""
        super().__init__()
        self.channels_last = channels_last
        self.compute_dtype = dtype
        self.conv = Conv2d(sizes.channels, sizes.width, 7, 2, bias=False)
        self.norm = BatchNorm(sizes.width)
        self.layers = nn.ModuleDict()
        channels = sizes.width
        for stage, blocks in enumerate(sizes.stages):
            width = sizes.width << stage
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                self.layers[f"{stage}_{number}"] = Bottleneck(channels, width, stride)
                channels = EXPANSION * width
        self.head = Linear(channels, sizes.classes, bias=True)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        return {f"layers.{name}": block for name, block in self.layers.items()}

    @property
    def last_layers(self) -> tuple[nn.Module, ...]:
        """The modules after the blocks."""
        return (self.head,)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Class logits (B, classes) of images (B, C, H, W)."""
        with span("stem"):
            images_BCHW = arrange(images_BCHW.to(self.compute_dtype), self.channels_last)
            # Arranged again, since images of one channel do not define a layout.
            x_BCHW = F.relu(self.norm(arrange(self.conv(images_BCHW), self.channels_last)))
            x_BCHW = F.max_pool2d(x_BCHW, 3, 2, 1)
        for layer in self.layers.values():
            x_BCHW = layer(x_BCHW)
        with span("head"):
            return self.head(x_BCHW.mean((2, 3)))

    def after_step(self) -> None:
        update_running_statistics(module for module in self.modules() if isinstance(module, BatchNorm))

    def discard_step(self) -> None:
        """Implements `DiscardsStep`: forgets the batch statistics of a step that is skipped."""
        forget_statistics(module for module in self.modules() if isinstance(module, BatchNorm))
