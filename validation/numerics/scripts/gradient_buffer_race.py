"""Weight gradients in two shared buffers, of which one is reused before its gradient was read.

Rebuilt after NVIDIA/Megatron-LM#5222, "Fix wgrad race condition when using double buffers". The asynchronous reduction
of a gradient is simulated by a queue: it reads its buffer when a later layer needs one. In the faulty variant the
later layer writes first. Layers have different sizes, so that the gradient is overwritten in part.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from batches import CLASSES, image_batch
from command_line import parse_options
from torch import Tensor, nn
from training_loop import train

WIDTHS = (432, 32, 64, 48, 32)
"""Inputs of the first block and outputs of each."""


class GradientBuffers:
    """Two buffers for weight gradients, used in turns. `waits`: whether a buffer is read before it is written again."""

    def __init__(self, size: int, waits: bool) -> None:
        self.waits = waits
        self.free = [torch.zeros(size), torch.zeros(size)]
        self.unread: deque[tuple[nn.Parameter, Tensor]] = deque()

    def write(self, parameter: nn.Parameter, output_gradient: Tensor, x: Tensor) -> None:
        """Computes the gradient of a weight into the next buffer and queues its reduction."""
        is_full = len(self.unread) == 2
        buffer = self.unread[0][1] if is_full else self.free[len(self.unread)]
        if is_full and self.waits:
            self._reduce()
        torch.mm(output_gradient.mT, x, out=buffer[: parameter.numel()].view_as(parameter))
        if is_full and not self.waits:
            self._reduce()
        self.unread.append((parameter, buffer))

    def finish(self) -> None:
        while self.unread:
            self._reduce()

    def _reduce(self) -> None:
        parameter, buffer = self.unread.popleft()
        parameter.grad = buffer[: parameter.numel()].view_as(parameter).clone()


class BufferedLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, buffers: GradientBuffers) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.buffers = weight, buffers
        return x @ weight.mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        ctx.buffers.write(ctx.weight, gradient, x)
        return gradient @ ctx.weight, None, None


class BufferedLinear(nn.Module):
    """A linear layer whose weight gradient is computed into a shared buffer."""

    def __init__(self, inputs: int, outputs: int, buffers: GradientBuffers) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.gradient_buffers = buffers

    def forward(self, x: Tensor) -> Tensor:
        return BufferedLinearFunction.apply(x, self.weight, self.gradient_buffers)


def main() -> None:
    options = parse_options(__doc__)
    sizes = list(pairwise(WIDTHS))
    buffers = GradientBuffers(max(inputs * outputs for inputs, outputs in sizes), waits=not options.faulty)
    model = nn.Sequential(
        nn.Flatten(),
        *(part for inputs, outputs in sizes for part in (BufferedLinear(inputs, outputs, buffers), nn.Tanh())),
        nn.Linear(WIDTHS[-1], CLASSES),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: buffers.finish())

    def loss(step: int) -> Tensor:
        batch = image_batch(options.seed, step)
        # The first layer's weight gets its gradient only if its input has one.
        return F.cross_entropy(model(batch.pixels.requires_grad_()), batch.classes)

    train(options, model, optimizer, loss)


if __name__ == "__main__":
    main()
