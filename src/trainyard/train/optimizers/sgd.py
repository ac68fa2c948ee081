"""The `Optimizer` plugin for stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.job import Recipe

MOMENTUM = 0.9


class Sgd:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013, "On the importance of initialization and
    momentum in deep learning"), without weight decay."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        """torch's SGD with momentum over the named parameters, with one group of parameters per device mesh."""
        import torch

        from trainyard.train.optimizers.make_optimizer import by_mesh

        return torch.optim.SGD(
            by_mesh(parameter for _, parameter in named),
            lr=recipe.learning_rate,
            momentum=MOMENTUM,
            fused=recipe.optimizer_implementation == "fused",
            foreach=recipe.optimizer_implementation == "foreach",
        )
