"""Row-wise AdaGrad for embedding tables, as FBGEMM's EXACT_ROWWISE_ADAGRAD: one accumulator per row.

AdaGrad (Duchi, Hazan, Singer 2011) has an accumulator per weight. That of a row is the sum over the steps of the mean
of its squared gradients. Rows without a gradient stay as they are, so that a step reads and writes no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainyard.recipe import Recipe
from trainyard.train.optimizers import row_gradients
from trainyard.train.optimizers.row_gradients import RowGradients
from trainyard.train.parallel.local_part import local_part


class RowwiseAdagrad(torch.optim.Optimizer):
    """Updates the rows that `gradients` has: s += mean(g^2), w -= lr g / (sqrt(s) + eps). The state `row_sum` (rows) of
    a table is sharded like its rows."""

    def __init__(self, gradients: RowGradients, recipe: Recipe) -> None:
        """Creates the state too, since a step may lack a table."""
        self.gradients = gradients
        weights = [table.weight for table in gradients.tables]
        super().__init__(weights, {"lr": recipe.learning_rate, "eps": recipe.eps})
        with torch.no_grad():
            for weight in weights:
                self.state[weight]["row_sum"] = _zeros_per_row(weight)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Updates the looked-up rows of all tables."""
        rate, eps = self.param_groups[0]["lr"], self.param_groups[0]["eps"]
        for weight, ids, values in self.gradients.by_table():
            row_sums = local_part(self.state[weight]["row_sum"])
            sums = row_sums[ids] + values.square().mean(dim=1)
            row_sums[ids] = sums
            local_part(weight).index_add_(0, ids, values / (sums.sqrt() + eps)[:, None], alpha=-rate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.gradients.clear()


def make(modules: Sequence[nn.Module], recipe: Recipe) -> RowwiseAdagrad | None:
    """The optimizer of the tables with gradients of rows; None if the modules have no such tables."""
    parts = row_gradients.find(modules)
    if not parts:
        return None
    (part,) = parts  # of several, all but the first would not be trained
    return RowwiseAdagrad(RowGradients(part), recipe)


def _zeros_per_row(weight: Tensor) -> Tensor:
    """A zero per row, sharded like the rows of `weight`."""
    zeros = local_part(weight).new_zeros(len(local_part(weight)))
    if not isinstance(weight, DTensor):
        return zeros
    return DTensor.from_local(
        zeros, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape[:1], stride=(1,)
    )
