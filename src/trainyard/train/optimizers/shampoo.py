"""The `Optimizer` plugin for Shampoo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.recipe import Recipe


class Shampoo:
    """Gradients preconditioned on both sides, for the layers' matrices; AdamW for embeddings, head, norms, biases
    and experts (Gupta et al. 2018, arXiv:1802.09568, algorithm 1)."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        from trainyard.train.optimizers.matrix_optimizers import Kronecker

        return Kronecker(named, recipe)
