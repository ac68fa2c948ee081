"""Number formats: what is computed in, beside float32 weights, gradients' sums and optimizer state."""

from __future__ import annotations

import torch

from trainyard.job import Recipe

_COMPUTES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def computes(recipe: Recipe) -> torch.dtype:
    """What activations are in, and weights where they are multiplied."""
    return _COMPUTES[recipe.dtype]
