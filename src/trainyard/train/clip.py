"""The global gradient norm, over all meshes that parameters lie on, and clipping by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from trainyard.train.parallel.mesh import Meshes


def total_norm(parameters: Sequence[nn.Parameter], meshes: Meshes | None) -> Tensor:
    """Of the gradients of the whole model, the same on every rank; infinite or NaN when any is."""
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            groups[mesh_of(parameter)].append(parameter.grad)
    device = parameters[0].device
    squares = torch.zeros((), device=device)
    for grads in groups.values():
        norm = get_total_norm(grads)
        squares += (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    if meshes is not None and meshes.layout.pp > 1:
        dist.all_reduce(squares, group=meshes.data.get_group("pp"))
    return squares.sqrt()


def scale(parameters: Sequence[nn.Parameter], factor: Tensor) -> None:
    """Multiplies every gradient in place."""
    groups: dict[object, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            grad = parameter.grad
            groups[mesh_of(parameter)].append(grad.to_local() if isinstance(grad, DTensor) else grad)
    for grads in groups.values():
        torch._foreach_mul_(grads, factor)  # pyright: ignore[reportPrivateImportUsage]


def mesh_of(parameter: Tensor) -> object:
    """What tensors must share to be worked on in one call."""
    return parameter.device_mesh if isinstance(parameter, DTensor) else None
