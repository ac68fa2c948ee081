"""Convolutions and their norms, which cast their float32 weights to the dtype of the input as in model/layers.py.

Shapes: B samples, C channels, H rows, W columns.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM = 0.1
"""Weight of a step's statistics in a batch norm's running statistics."""


def arrange(x_BCHW: Tensor, channels_last: bool | None) -> Tensor:
    """The input of a convolutional network, in channels-last memory layout if `channels_last`; if it is None, on an
    accelerator, whose tensor cores need that layout. The layers that follow keep the layout."""
    wanted = x_BCHW.is_cuda if channels_last is None else channels_last
    return x_BCHW.contiguous(memory_format=torch.channels_last) if wanted else x_BCHW


class Conv2d(nn.Conv2d):
    """A convolution with square kernels, zero-padded so that stride 1 keeps the size (odd kernels). Its weight is cast
    to the memory layout of the input, so that no kernel converts the larger input."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, bias: bool = True) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding=(kernel - 1) // 2, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        is_channels_last = input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous()
        layout = torch.channels_last if is_channels_last else torch.preserve_format
        weight = self.weight.to(input.dtype, memory_format=layout)
        return F.conv2d(input, weight, bias, self.stride, self.padding)


class Patches(nn.Conv2d):
    """A patch embedding: a convolution with stride equal to the kernel size."""

    def __init__(self, channels_in: int, channels_out: int, patch: int) -> None:
        super().__init__(channels_in, channels_out, patch, patch)

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.conv2d(input, self.weight.to(input.dtype), bias, self.stride)


class GroupNorm(nn.GroupNorm):
    """Normalization over groups of channels of one sample (Wu and He 2018, arXiv:1803.08494)."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        return F.group_norm(input, self.num_groups, weight, bias, self.eps)


class BatchNorm(nn.Module):
    """Normalization over the samples of a micro-batch on one rank (Ioffe and Szegedy 2015, arXiv:1502.03167).

    `update_running_statistics` updates the running statistics once per step, by the mean over all micro-batches of all
    ranks. They are therefore the same on every rank, under any layout with equal micro-batches, and with recomputed
    forward passes.
    """

    running_mean: Tensor
    running_var: Tensor
    sums: Tensor
    times: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        """`sums` (2, C): sums of the micro-batches' means and variances since the last step; `times` (1,): number of
        these micro-batches."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("sums", torch.zeros(2, channels), persistent=False)
        self.register_buffer("times", torch.zeros(1), persistent=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Normalizes (B, C, H, W) by the mean and variance of this micro-batch per channel, and adds them to `sums`."""
        weight, bias = (part.to(x_BCHW.dtype).float() for part in (self.weight, self.bias))
        mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        # With momentum 1, the kernel returns the statistics of this micro-batch.
        y_BCHW = F.batch_norm(x_BCHW, mean, var, weight, bias, training=True, momentum=1.0, eps=self.eps)
        self.sums.add_(torch.stack((mean, var)))
        self.times.add_(1)
        return y_BCHW


def update_running_statistics(norms: Iterable[BatchNorm]) -> None:
    """Ends a step: updates the running statistics of all batch norms by the mean over the step's micro-batches on all
    ranks, with one all-reduce, and resets the sums. Collective."""
    norms = list(norms)
    with torch.no_grad():
        # One flat tensor: of each norm in turn its sums (2 C values) and its count (1 value).
        totals = torch.cat([part.flatten() for norm in norms for part in (norm.sums, norm.times)])
        if dist.is_initialized():
            dist.all_reduce(totals)
        split_totals = totals.split([part.numel() for norm in norms for part in (norm.sums, norm.times)])
        for norm, sums, times in zip(norms, split_totals[::2], split_totals[1::2]):
            mean, var = (sums / times).view_as(norm.sums)
            norm.running_mean.lerp_(mean, MOMENTUM)
            norm.running_var.lerp_(var, MOMENTUM)
            norm.sums.zero_()
            norm.times.zero_()


def forget_statistics(norms: Iterable[BatchNorm]) -> None:
    """Resets the sums of all batch norms without updating their running statistics."""
    for norm in norms:
        norm.sums.zero_()
        norm.times.zero_()
