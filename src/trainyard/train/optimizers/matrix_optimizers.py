"""Optimizers that need unsharded matrices; AdamW for the rest of the model.

A sharded matrix (a DTensor) is gathered, and every rank computes the full update and keeps its shard. This is correct
on any layout, at the cost of an all-gather per matrix and redundant arithmetic, which ZeRO-1 divides among the ranks.
Stacked matrices, those of experts (E, rows, columns), are updated matrix by matrix: a rank gathers and updates only the
experts that it has a part of. Elementwise state is sharded like the matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainyard.recipe import Recipe
from trainyard.train.optimizers import parameter_groups
from trainyard.train.optimizers.adamw import WEIGHT_DECAY

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


class WholeMatrices(torch.optim.AdamW):
    """Base class: updates the matrices of layers by `direction`, which a subclass defines, and the other parameters by
    AdamW. A parameter group has the extra key `whole`: whether its parameters are such matrices."""

    matrix_dims: tuple[int, ...] = (2,)
    """Dimensions of the parameters of layers that `direction` updates; 3: stacks of matrices (E, rows, columns)."""
    matrix_weight_decay: float = WEIGHT_DECAY
    """Weight decay of the matrices if the recipe has none."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], recipe: Recipe) -> None:
        """Divides the parameters into matrices of layers, updated by `direction` (groups with `whole`), and the rest,
        updated by AdamW."""
        groups: list[dict[str, Any]] = []
        for whole, default_decay in ((True, self.matrix_weight_decay), (False, WEIGHT_DECAY)):
            parameters = [pair for pair in named if self._is_matrix(*pair) == whole]
            decay = parameter_groups.default_decay(recipe, default_decay)
            groups += [{**group, "whole": whole} for group in parameter_groups.divide(parameters, recipe, decay)]
        super().__init__(
            groups,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
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
                    self._update_matrix(parameter, parameter.grad, group["lr"], group["weight_decay"])
        return loss

    def _update_matrix(self, parameter: nn.Parameter, grad: Tensor, rate: float, decay: float) -> None:
        """Updates one matrix, or a stack of them, in place: decays it, then subtracts learning rate x scale x
        direction. A sharded one takes its part of the direction."""
        direction, scale = self.direction(grad, self.state[parameter])
        parameter.mul_(1 - rate * decay).add_(_local_part(direction, parameter), alpha=-rate * scale)

    def _is_matrix(self, name: str, parameter: Tensor) -> bool:
        """Whether `direction` updates the parameter: a matrix or stack of matrices in a layer, not a table or head."""
        is_in_layer = not any(part.startswith(_NOT_IN_LAYER_PREFIXES) for part in name.split("."))
        return is_in_layer and parameter.dim() in self.matrix_dims

    @abstractmethod
    def direction(self, grad: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, float]:
        """For one parameter: the update of the matrices that `whole_matrices` gives of a tensor like `grad`, and the
        factor applied to the learning rate. `state`: of the parameter, by name; it is created and updated here."""


class Orthogonal(WholeMatrices):
    """Muon. Its update is scaled to about the size of AdamW's, so that both use the same learning rate (Liu et al.
    2025, arXiv:2502.16982, section 2.2).

    The iteration is in bfloat16, as usual, but in float32 for float32 training: in bfloat16, the rounding of gradients
    that are summed in a different order would show in the losses.
    """

    matrix_dims = (2, 3)

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], recipe: Recipe) -> None:
        self.dtype = torch.float32 if recipe.dtype == "float32" else torch.bfloat16
        self.momentum = recipe.momentum_of("muon")
        self.nesterov = recipe.nesterov is not False
        super().__init__(named, recipe)

    def direction(self, grad: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, float]:
        """Muon's: the orthogonalized momentum, Nesterov's by default, and its scale 0.2 sqrt(longer side)."""
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(grad)
        average = state["momentum"].lerp_(grad, 1 - self.momentum)
        update = whole_matrices(grad.lerp(average, self.momentum) if self.nesterov else average)
        return orthogonal(update, self.dtype).to(grad.dtype), _MUON_SCALE * sqrt(max(grad.shape[-2:]))


class Kronecker(WholeMatrices):
    """Shampoo: W -= rate * L^(-1/4) G R^(-1/4), with L and R the sums of G G^T and G^T G over all steps. Without
    momentum, and without weight decay by default."""

    matrix_weight_decay = 0.0

    def direction(self, grad: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, float]:
        """Shampoo's: L^(-1/4) G R^(-1/4) with the sums L of G G^T and R of G^T G so far; scale 1."""
        matrix = whole_matrices(grad)
        if not state:
            for side, size in zip(("left", "right"), matrix.shape):
                state[side] = EPSILON * torch.eye(size, device=matrix.device)
        state["left"] += matrix @ matrix.T
        state["right"] += matrix.T @ matrix
        return inverse_fourth_root(state["left"]) @ matrix @ inverse_fourth_root(state["right"]), 1.0


def whole_matrices(tensor: Tensor) -> Tensor:
    """The unsharded matrix that a DTensor is a shard of; of a stack (E, rows, columns), the unsharded matrices of which
    this rank has a part. Other tensors are returned unchanged. Collective. An offloaded shard is first copied to its
    device."""
    if not isinstance(tensor, DTensor):
        return tensor
    on_device = cast(DTensor, tensor.to(tensor.device_mesh.device_type))
    return on_device.redistribute(placements=_stacked_placements(on_device)).to_local()


def _stacked_placements(tensor: DTensor) -> list[Shard | Replicate]:
    """Placements of a DTensor whose matrices are whole on each rank: a stack stays sharded by matrix (`Shard(0)`)."""
    keeps = tensor.dim() == 3
    return [Shard(0) if keeps and type(part) is Shard and part.dim == 0 else Replicate() for part in tensor.placements]


def _local_part(matrices: Tensor, parameter: Tensor) -> Tensor:
    """This rank's shard of `matrices`, the whole matrices of a tensor like `parameter`; unchanged if that is not
    sharded. Nothing is sent: each rank has all that it needs."""
    if not isinstance(parameter, DTensor):
        return matrices
    whole = DTensor.from_local(
        matrices,
        parameter.device_mesh,
        _stacked_placements(parameter),
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return whole.redistribute(placements=parameter.placements).to(parameter.device)  # the host, if offloaded


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Approximates U V^T of `matrix` = U S V^T by Newton-Schulz iteration: singular values end up in 0.7 to 1.2. Each
    iteration is x <- a x + b (x x^T) x + c (x x^T)^2 x with the `_COEFFICIENTS` a, b, c. `matrix`: (rows, columns), or
    a stack (E, rows, columns), each of which is treated separately. `dtype`: of the arithmetic."""
    linear, cubic, quintic = _COEFFICIENTS
    x = matrix.to(dtype)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_MIN_NORM)
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = add_product(x, add_product(gram, gram, gram, beta=cubic, alpha=quintic), x, beta=linear)
    return x.mT if is_tall else x


def inverse_fourth_root(matrix: Tensor) -> Tensor:
    """A^(-1/4) of a symmetric positive definite matrix, with eigenvalues of at least `EPSILON`. Computed in float64,
    where rounding cannot make it indefinite."""
    values, vectors = torch.linalg.eigh(matrix.double())
    return ((vectors * values.clamp(min=EPSILON) ** -0.25) @ vectors.T).to(matrix.dtype)
