"""Compute precision. Weights, gradient accumulation and optimizer state are always float32."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainyard.recipe import Recipe

_COMPUTES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}


def compute_dtype(recipe: Recipe) -> torch.dtype:
    """The dtype of activations and of weights in products; for float8, the dtype that is rounded to it."""
    return _COMPUTES[recipe.dtype]


def prepare(blocks: Iterable[nn.Module], recipe: Recipe) -> None:
    """Sets the float32 matmul precision and cuDNN's benchmarking in this process, and converts the blocks of a float8
    model."""
    torch.set_float32_matmul_precision("high" if recipe.dtype == "tf32" else "highest")
    torch.backends.cudnn.benchmark = recipe.cudnn_benchmark
    if recipe.dtype == "float8":
        from trainyard.train.step import float8

        for block in blocks:
            float8.convert(block)
