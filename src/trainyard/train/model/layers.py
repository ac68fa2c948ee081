"""Layers whose float32 weights take the dtype of what they multiply.

The input is cast to the compute dtype once, where a model begins; a layer casts its weight to match: the same
arithmetic alone, replicated and sharded (where FSDP has cast the weights already, the cast does nothing).
They are torch's own classes, so that what splits those (tensor parallelism, float8) splits these.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _as(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(x.dtype)


class Linear(nn.Linear):
    """y = x W^T (+ b), with W (out, in)."""

    def __init__(self, width_in: int, width_out: int, bias: bool = False) -> None:
        super().__init__(width_in, width_out, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype), _as(self.bias, input))


class Embedding(nn.Embedding):
    """Rows of (V, D), in `dtype`."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(rows, width)
        self.computes = dtype

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight).to(self.computes)


class Tied(nn.Module):
    """The embedding's rows as a head's: y = x W^T. It has no parameter of its own."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self._of = (embedding,)  # in a tuple it is no child, and has no second name

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._of[0].weight.to(x.dtype))


class RmsNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    """Normalisation to mean 0 and deviation 1 over the last dimension (Ba et al. 2016, arXiv:1607.06450)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, _as(self.weight, input), _as(self.bias, input), self.eps)
