"""Number formats: what is computed in, beside float32 weights, gradients' sums and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainyard.job import Recipe

_COMPUTES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.bfloat16,
}


def computes(recipe: Recipe) -> torch.dtype:
    """What activations are in, and weights where they are multiplied; of float8, what is rounded for its products."""
    return _COMPUTES[recipe.dtype]


def prepare(blocks: Iterable[nn.Module], recipe: Recipe) -> None:
    """Sets how this process multiplies float32 matrices, and gives the blocks of a float8 model such products."""
    torch.set_float32_matmul_precision("high" if recipe.dtype == "tf32" else "highest")
    if recipe.dtype == "float8":
        from trainyard.train.step import float8

        for block in blocks:
            float8.convert(block)
