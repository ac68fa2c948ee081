"""Convolutions and the norms that go with them: float32 weights that take the dtype of their input, as in ../layers.py.

Shapes: B samples, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM = 0.1
"""Share of a step's statistics in a batch norm's running ones."""


class Conv2d(nn.Conv2d):
    """With square kernels, the border filled with zeros so that stride 1 keeps the size (odd kernels)."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, bias: bool = True) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=(kernel - 1) // 2, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.conv2d(input, self.weight.to(input.dtype), bias, self.stride, self.padding)


class Patches(nn.Conv2d):
    """A convolution whose kernels lie side by side."""

    def __init__(self, channels_in: int, channels_out: int, patch: int) -> None:
        super().__init__(channels_in, channels_out, patch, patch)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.conv2d(input, self.weight.to(input.dtype), bias, self.stride)


class GroupNorm(nn.GroupNorm):
    """Normalisation over groups of channels of one sample (Wu and He 2018, arXiv:1803.08494)."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        return F.group_norm(input, self.num_groups, weight, bias, self.eps)


class BatchNorm(nn.Module):
    """Normalisation over the samples of a micro-batch on one rank (Ioffe and Szegedy 2015, arXiv:1502.03167).

    The running statistics change once a step, by the mean over the step's micro-batches on all ranks (`settle`), so
    that they are the same on every rank, under any layout with micro-batches of the same size, and however often a
    micro-batch's forward pass is computed.
    """

    running_mean: Tensor
    running_var: Tensor
    sums: Tensor
    times: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("sums", torch.zeros(2, channels), persistent=False)
        self.register_buffer("times", torch.zeros(1), persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        weight, bias = (part.to(x_BCHW.dtype).float() for part in (self.weight, self.bias))
        mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        # Momentum 1 leaves the statistics of this micro-batch alone, which the kernel has at hand.
        y_BCHW = F.batch_norm(x_BCHW, mean, var, weight, bias, training=True, momentum=1.0, eps=self.eps)
        self.sums.add_(torch.stack((mean, var)))
        self.times.add_(1)
        return y_BCHW


def settle(norms: Iterable[BatchNorm]) -> None:
    """What the batch norms saw in a step goes into their running statistics: one all-reduce. On every rank alike."""
    norms = list(norms)
    with torch.no_grad():
        seen = torch.cat([part.flatten() for norm in norms for part in (norm.sums, norm.times)])
        if dist.is_initialized():
            dist.all_reduce(seen)
        parts = seen.split([part.numel() for norm in norms for part in (norm.sums, norm.times)])
        for norm, sums, times in zip(norms, parts[::2], parts[1::2]):
            mean, var = (sums / times).view_as(norm.sums)
            norm.running_mean.lerp_(mean, MOMENTUM)
            norm.running_var.lerp_(var, MOMENTUM)
            norm.sums.zero_()
            norm.times.zero_()
