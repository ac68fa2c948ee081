"""The global gradient norm over parameters on different device meshes, and gradient clipping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from trainyard.train.optimizers.row_gradients import RowGradients
from trainyard.train.parallel.local_part import local_part
from trainyard.train.parallel.mesh import Meshes

EPSILON = 1e-6
"""Added to the norm that a factor is divided by, as in torch."""


def total_norm(
    parameters: Sequence[nn.Parameter],
    meshes: Meshes | None,
    unshared: Sequence[nn.Parameter] = (),
    rows: RowGradients | None = None,
) -> Tensor:
    """The gradient norm of the unsharded model, the same on every rank; infinite or NaN if any gradient is. Collective.

    Sums squares over the axes that shard a gradient; replicated gradients count once. `unshared`: the parameters that
    exist on this rank only. Either every rank has some or none has. `rows`: gradients of tables, which have no `grad`.
    """
    device = parameters[0].device if meshes is None else torch.device(meshes.world.device_type)
    # Key: the process groups over which the squares of a gradient are summed, in turn; value: this rank's parts.
    grads_by_groups: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)
    unshared_ids = {id(parameter) for parameter in unshared}
    for parameter in parameters:
        if parameter.grad is not None:
            groups = _sharding_groups(parameter.grad)
            if meshes is not None and id(parameter) in unshared_ids:
                groups = (meshes.world.get_group(),)
            grads_by_groups[groups].append(local_part(parameter.grad))
    if rows is not None:
        groups = (meshes.world.get_group(),) if meshes is not None and rows.replicas is None else ()
        grads_by_groups[groups].append(rows.values)
    sum_of_squares = torch.zeros((), device=device)
    for groups, grads in grads_by_groups.items():
        group_sum = get_total_norm(grads).to(device) ** 2
        for group in groups:
            dist.all_reduce(group_sum, group=group)
        sum_of_squares += group_sum
    if meshes is not None and meshes.layout.pp > 1:
        dist.all_reduce(sum_of_squares, group=meshes.data.get_group("pp"))
    return sum_of_squares.sqrt()


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """The factor, a scalar, that reduces gradients with the global norm `norm` to at most `max_norm`; 1 if `max_norm`
    is 0, which means no clipping."""
    return (max_norm / (norm + EPSILON)).clamp(max=1.0) if max_norm else torch.ones_like(norm)


def scale(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiplies every gradient in place by the scalar tensor `factor`."""
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            groups[mesh_of(parameter)].append(local_part(parameter.grad))
    for grads in groups.values():
        torch._foreach_mul_(grads, factor.to(grads[0].device))  # pyright: ignore[reportPrivateImportUsage]


def mesh_of(parameter: Tensor) -> object:
    """The device mesh of a tensor. One foreach call takes tensors of one mesh only."""
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


def _sharding_groups(grad: Tensor) -> tuple[ProcessGroup, ...]:
    """The process groups of the mesh axes that shard a gradient; its squares must be summed over each of them in turn.
    Empty if every rank has the whole gradient."""
    if not isinstance(grad, DTensor):
        return ()
    return tuple(
        grad.device_mesh.get_group(dim) for dim, placement in enumerate(grad.placements) if not placement.is_replicate()
    )
