"""The global gradient norm, over all meshes that parameters lie on, and clipping by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from trainyard.train.parallel.mesh import Meshes


def total_norm(parameters: Sequence[nn.Parameter], meshes: Meshes | None, unshared: Sequence[nn.Parameter] = ()) -> Tensor:
    """Of the gradients of the whole model, the same on every rank; infinite or NaN when any is.

    What is divided over the ranks of an axis is summed over it, and what is alike on them counts once. `lone`: those of
    the parameters that are on this rank and on no other; some on each rank, or none on any.
    """
    device = parameters[0].device if meshes is None else torch.device(meshes.world.device_type)
    parts: dict[tuple[ProcessGroup, ...], list[Tensor]] = defaultdict(list)
    apart = {id(parameter) for parameter in unshared}
    for parameter in parameters:
        if parameter.grad is not None:
            groups = _divided_over(parameter.grad)
            if meshes is not None and id(parameter) in apart:
                groups = (meshes.world.get_group(),)
            parts[groups].append(_local(parameter.grad))
    squares = torch.zeros((), device=device)
    for groups, grads in parts.items():
        square = get_total_norm(grads).to(device) ** 2
        for group in groups:
            dist.all_reduce(square, group=group)
        squares += square
    if meshes is not None and meshes.layout.pp > 1:
        dist.all_reduce(squares, group=meshes.data.get_group("pp"))
    return squares.sqrt()


def scale(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiplies every gradient in place."""
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            groups[mesh_of(parameter)].append(_local(parameter.grad))
    for grads in groups.values():
        torch._foreach_mul_(grads, factor.to(grads[0].device))  # pyright: ignore[reportPrivateImportUsage]


def mesh_of(parameter: Tensor) -> object:
    """What tensors must share to be worked on in one call."""
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


def _local(grad: Tensor) -> Tensor:
    return grad.to_local() if isinstance(grad, DTensor) else grad


def _divided_over(grad: Tensor) -> tuple[ProcessGroup, ...]:
    """The groups of the axes over whose ranks it is divided."""
    if not isinstance(grad, DTensor):
        return ()
    return tuple(
        grad.device_mesh.get_group(dim) for dim, place in enumerate(grad.placements) if not place.is_replicate()
    )
