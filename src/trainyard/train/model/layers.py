"""Layers that cast their float32 weights to the dtype of their input.

A model casts its input to the compute dtype once, and each layer casts its weights to match. The arithmetic is thus the
same on one rank, replicated and sharded (if FSDP has cast the weights already, the cast is a no-op). The classes are
subclasses of torch's, so that tensor parallelism and float8 conversion recognize them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _cast(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(x.dtype)


class Linear(nn.Linear):
    """y = x W^T (+ b), with W (out, in)."""

    def __init__(self, width_in: int, width_out: int, bias: bool = False) -> None:
        super().__init__(width_in, width_out, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype), _cast(self.bias, input))


class Embedding(nn.Embedding):
    """An embedding table (V, D) with outputs in `dtype`."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(rows, width)
        self.compute_dtype = dtype

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight).to(self.compute_dtype)


class Tied(nn.Module):
    """A head tied to the embedding: y = x W^T. It has no parameters of its own."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self._embedding = (embedding,)  # in a tuple, it is not registered as a submodule under a second name

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self._embedding[0].weight.to(x.dtype))


class RmsNorm(nn.Module):
    """Root-mean-square normalization over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class LayerNorm(nn.LayerNorm):
    """Normalization to mean 0 and standard deviation 1 over the last dimension (Ba et al. 2016, arXiv:1607.06450)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, _cast(self.weight, input), _cast(self.bias, input), self.eps)
