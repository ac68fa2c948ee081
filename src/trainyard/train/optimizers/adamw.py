"""The `Optimizer` plugin for AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.job import Recipe

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        """torch's AdamW over the named parameters, with one group of parameters per device mesh."""
        import torch

        from trainyard.train.optimizers.make_optimizer import by_mesh

        return torch.optim.AdamW(
            by_mesh(parameter for _, parameter in named),
            lr=recipe.learning_rate,
            betas=BETAS,
            weight_decay=WEIGHT_DECAY,
            fused=recipe.optimizer_implementation == "fused",
            foreach=recipe.optimizer_implementation == "foreach",
        )
