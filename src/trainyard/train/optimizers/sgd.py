"""The `Optimizer` plugin for stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.recipe import Recipe


class Sgd:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013, "On the importance of initialization and
    momentum in deep learning"), without weight decay by default."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        """torch's SGD over the named parameters, in the groups of `parameter_groups.divide`."""
        import torch

        from trainyard.train.optimizers import parameter_groups

        return torch.optim.SGD(
            parameter_groups.divide(named, recipe, parameter_groups.default_decay(recipe, 0.0)),
            lr=recipe.learning_rate,
            momentum=recipe.momentum_of("sgd"),
            nesterov=bool(recipe.nesterov),
            fused=recipe.optimizer_implementation == "fused",
            foreach=recipe.optimizer_implementation == "foreach",
        )
