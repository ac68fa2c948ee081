"""Layers that compute the same in another way, with the same parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DecomposedLayerNorm(nn.LayerNorm):
    """Layer norm of the last dimension as single operations."""

    def forward(self, input: Tensor) -> Tensor:
        centred = input - input.mean(-1, keepdim=True)
        normalised = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps)
        return normalised * self.weight + self.bias


class DecomposedGroupNorm(nn.GroupNorm):
    """Group norm as single operations."""

    def forward(self, input: Tensor) -> Tensor:
        groups = input.reshape(len(input), self.num_groups, -1)
        variance, mean = torch.var_mean(groups, dim=-1, correction=0, keepdim=True)
        normalised = ((groups - mean) / (variance + self.eps).sqrt()).view_as(input)
        return normalised * self.weight[:, None, None] + self.bias[:, None, None]


class ChunkedLinear(nn.Linear):
    """A linear layer whose inner dimension is summed in two parts (split-K)."""

    def forward(self, input: Tensor) -> Tensor:
        left, right = (part @ weight.mT for part, weight in zip(input.chunk(2, -1), self.weight.chunk(2, -1)))
        return left + right + self.bias


class MatrixConv2d(nn.Conv2d):
    """A convolution of stride 1 as a matrix product with the unfolded input."""

    def forward(self, input: Tensor) -> Tensor:
        size = self.kernel_size[0]
        columns = F.unfold(input, size, padding=size // 2)
        output = self.weight.flatten(1) @ columns
        if self.bias is not None:
            output = output + self.bias[:, None]
        return output.view(len(input), self.out_channels, *input.shape[-2:])


class CellLSTM(nn.LSTM):
    """An LSTM of one layer that computes position by position."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        input_weight, hidden_weight, input_bias, hidden_bias = self.all_weights[0]
        hidden = cell = input.new_zeros(len(input), self.hidden_size)
        outputs: list[Tensor] = []
        for x in input.unbind(1):
            gates = x @ input_weight.mT + input_bias + hidden @ hidden_weight.mT + hidden_bias
            take, forget, new, show = gates.chunk(4, -1)
            cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = show.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs, dim=1), (hidden, cell)
