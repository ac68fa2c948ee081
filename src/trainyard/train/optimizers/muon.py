"""The `Optimizer` plugin for Muon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.recipe import Recipe


class Muon:
    """Orthogonalized momentum for the layers' matrices, including each expert's; AdamW for embeddings, head, norms,
    biases and convolutions (Jordan et al. 2024, kellerjordan.github.io/posts/muon)."""

    def make(self, named: Sequence[tuple[str, Any]], recipe: Recipe) -> Any:
        from trainyard.train.optimizers.matrix_optimizers import Orthogonal

        return Orthogonal(named, recipe)
