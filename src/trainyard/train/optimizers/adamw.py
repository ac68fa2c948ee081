"""The `Optimizer` plugin for AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.recipe import Recipe

WEIGHT_DECAY = 0.1


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        """torch's AdamW over the named parameters, in the groups of `parameter_groups.divide`."""
        import torch

        from trainyard.train.optimizers import parameter_groups

        decay = parameter_groups.default_decay(recipe, WEIGHT_DECAY)
        return torch.optim.AdamW(
            parameter_groups.divide(named, recipe, decay),
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            fused=recipe.optimizer_implementation == "fused",
            foreach=recipe.optimizer_implementation == "foreach",
        )
