"""Optimizers that need unsharded matrices; AdamW for the rest of the model.

A sharded matrix (a DTensor) is gathered, and every rank computes the full update and keeps its shard. This is correct
on any layout, at the cost of an all-gather per matrix and redundant arithmetic, which ZeRO-1 divides among the ranks.
Elementwise state is sharded like the matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainyard.job import Recipe
from trainyard.train.model.initial_weights import full_tensor
from trainyard.train.optimizers.adamw import BETAS, WEIGHT_DECAY
from trainyard.train.optimizers.make_optimizer import by_mesh

MOMENTUM = 0.95
EPSILON = 1e-6
"""Shampoo's preconditioners start as this times the identity."""
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The quintic with the steepest slope at zero that maps (0, 1] to about one (Jordan et al. 2024)."""
_ITERATIONS = 5
_MIN_NORM = 1e-7
"""A matrix is divided by its norm, or by this if it is zero."""
_MUON_SCALE = 0.2
"""Root mean square of AdamW's updates, which Muon's are scaled to (Liu et al. 2025, section 2.2)."""
_NOT_IN_LAYER_PREFIXES = ("embed", "head", "place", "position")
"""Names of two-dimensional parameters outside the layers: tables, and the projection to the classes."""


def is_layer_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix within a layer."""
    return parameter.dim() == 2 and not any(part.startswith(_NOT_IN_LAYER_PREFIXES) for part in name.split("."))


class WholeMatrices(torch.optim.AdamW):
    """Base class: updates the matrices of layers by `direction`, which a subclass defines, and the other parameters by
    AdamW. A parameter group has the extra key `whole`: whether its parameters are such matrices."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], recipe: Recipe) -> None:
        """Divides the parameters into matrices of layers, updated by `direction` (groups with `whole`), and the rest,
        updated by AdamW."""
        matrices = [parameter for name, parameter in named if is_layer_matrix(name, parameter)]
        other_parameters = [parameter for name, parameter in named if not is_layer_matrix(name, parameter)]
        groups = [{"params": matrices, "whole": True}] if matrices else []
        groups += [{**group, "whole": False} for group in by_mesh(other_parameters)]
        super().__init__(
            groups,
            lr=recipe.learning_rate,
            betas=BETAS,
            weight_decay=WEIGHT_DECAY,
            fused=recipe.optimizer_implementation == "fused",
            foreach=recipe.optimizer_implementation == "foreach",
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the other parameters by AdamW, then each matrix by `direction`. Returns the closure's loss, if
        AdamW ran it."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["whole"]]
        try:
            loss = super().step(closure) if self.param_groups else None
        finally:
            self.param_groups = groups
        for group in groups:
            for parameter in group["params"] if group["whole"] else ():
                if parameter.grad is not None:
                    self._update_matrix(parameter, parameter.grad, group["lr"])
        return loss

    def _update_matrix(self, parameter: nn.Parameter, grad: Tensor, rate: float) -> None:
        """Updates one matrix in place: decays it, then subtracts learning rate x scale x direction. A sharded one takes
        its part of the direction."""
        direction, scale, decay = self.direction(grad, self.state[parameter])
        if isinstance(parameter, DTensor):
            # src_data_rank=None: each rank takes its part of its own `direction`, which is equal on all; none is sent.
            direction = distribute_tensor(direction, parameter.device_mesh, parameter.placements, src_data_rank=None)
            direction = direction.to(parameter.device)  # the host, if offloaded
        parameter.mul_(1 - rate * decay).add_(direction, alpha=-rate * scale)

    @abstractmethod
    def direction(self, grad: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, float, float]:
        """For one matrix: the unsharded update, the factor applied to the learning rate, and the weight decay. `state`:
        of the matrix, by name; it is created and updated here."""


class Orthogonal(WholeMatrices):
    """Muon. Its update is scaled to about the size of AdamW's, so that both use the same learning rate (Liu et al.
    2025, arXiv:2502.16982, section 2.2).

    The iteration is in bfloat16, as usual, but in float32 for float32 training: in bfloat16, the rounding of gradients
    that are summed in a different order would show in the losses.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], recipe: Recipe) -> None:
        self.dtype = torch.float32 if recipe.dtype == "float32" else torch.bfloat16
        super().__init__(named, recipe)

    def direction(self, grad: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, float, float]:
        """Muon's: the orthogonalized Nesterov momentum, its scale 0.2 sqrt(longer side), and the weight decay."""
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(grad)
        momentum = state["momentum"].lerp_(grad, 1 - MOMENTUM)
        update = full_tensor(grad.lerp(momentum, MOMENTUM))  # Nesterov's
        return orthogonal(update, self.dtype).to(grad.dtype), _MUON_SCALE * sqrt(max(grad.shape)), WEIGHT_DECAY


class Kronecker(WholeMatrices):
    """Shampoo: W -= rate * L^(-1/4) G R^(-1/4), with L and R the sums of G G^T and G^T G over all steps. Without weight
    decay and momentum."""

    def direction(self, grad: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, float, float]:
        """Shampoo's: L^(-1/4) G R^(-1/4) with the sums L of G G^T and R of G^T G so far; scale 1, no weight decay."""
        matrix = full_tensor(grad)
        if not state:
            for side, size in zip(("left", "right"), matrix.shape):
                state[side] = EPSILON * torch.eye(size, device=matrix.device)
        state["left"] += matrix @ matrix.T
        state["right"] += matrix.T @ matrix
        return inverse_fourth_root(state["left"]) @ matrix @ inverse_fourth_root(state["right"]), 1.0, 0.0


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Approximates U V^T of `matrix` = U S V^T by Newton-Schulz iteration: singular values end up in 0.7 to 1.2. Each
    iteration is x <- a x + b (x x^T) x + c (x x^T)^2 x with the `_COEFFICIENTS` a, b, c. `dtype`: of the arithmetic."""
    linear, cubic, quintic = _COEFFICIENTS
    x = matrix.to(dtype)
    is_tall = x.shape[0] > x.shape[1]
    if is_tall:
        x = x.T
    x = x / x.norm().clamp(min=_MIN_NORM)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.T if is_tall else x


def inverse_fourth_root(matrix: Tensor) -> Tensor:
    """A^(-1/4) of a symmetric positive definite matrix, with eigenvalues of at least `EPSILON`. Computed in float64,
    where rounding cannot make it indefinite."""
    values, vectors = torch.linalg.eigh(matrix.double())
    return ((vectors * values.clamp(min=EPSILON) ** -0.25) @ vectors.T).to(matrix.dtype)
