"""Weight initialization and weight digests, both independent of the layout."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainyard.train.model.draw_shard import draw
from trainyard.train.model.logical_shard import find_shard
from trainyard.train.parallel.local_part import local_part
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.task import SelfSharded, Task

_WEIGHT_BYTES = 4
"""Weights are float32."""
MAX_DIGEST_BYTES = 2 * 10**9
"""Maximum bytes of weights for a digest: gathering and hashing more would take seconds."""


_IS_SKIPPED: ContextVar[bool] = ContextVar("initial weights are skipped", default=False)


@contextmanager
def skipped() -> Iterator[None]:
    """Context in which models are built without initial weights, since a checkpoint will overwrite them. If none can
    be loaded, `Trainer.draw_weights` draws them."""
    token = _IS_SKIPPED.set(True)
    try:
        yield
    finally:
        _IS_SKIPPED.reset(token)


def are_skipped() -> bool:
    """Whether this is called in the context `skipped`."""
    return _IS_SKIPPED.get()


def clear(tensors: Iterable[Tensor]) -> None:
    """Sets the values of tensors, this rank's shards of them, to zero."""
    with torch.no_grad():
        for values in tensors:
            local_part(values).zero_()


def fill(module: nn.Module, task: Task, device: torch.device | None = None) -> None:
    """Initializes a module: draws this rank's shard of each parameter and persistent buffer by the task's distribution
    of its name and unsharded shape, and sets other buffers to zero. Sends nothing.

    `device`: draws the values; that of each shard if None. An offloaded shard is in host memory, but drawn faster on
    the rank's device.
    """
    clear(module.buffers())
    with torch.no_grad():
        for name, values in module.state_dict(keep_vars=True).items():
            local = local_part(values)
            distribution = task.distribution(name, values.shape)
            draw(local, find_shard(values), distribution, task.seed, name, device or local.device)


def count_parameters(modules: Sequence[nn.Module], meshes: Meshes | None) -> int:
    """Parameter count of the unsharded model. Collective if ranks have different parameters."""
    unshared_count = sum(parameter.numel() for parameter in unshared(modules))
    shared_count = torch.tensor(
        sum(parameter.numel() for module in modules for parameter in module.parameters()) - unshared_count
    )
    if meshes is not None and meshes.layout.pp > 1:
        group = meshes.data.get_group("pp")
        shared_count = shared_count.to(meshes.world.device_type)
        dist.all_reduce(shared_count, group=group)
    if meshes is not None and unshared_count:
        unshared_total = torch.tensor(unshared_count, device=meshes.world.device_type)
        dist.all_reduce(unshared_total, group=meshes.world.get_group())
        unshared_count = int(unshared_total)
    return int(shared_count) + unshared_count


def unshared(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """The parameters that exist on this data-parallel rank only."""
    parts = [part for module in modules for part in module.modules() if isinstance(part, SelfSharded)]
    return [parameter for part in parts for parameter in part.unshared()]


def digest(modules: Sequence[nn.Module], meshes: Meshes | None) -> str | None:
    """The SHA-256 digest (hexadecimal) over names and values of all weights of the unsharded model, the same on every
    rank and under every layout; None if they have more than `MAX_DIGEST_BYTES`. Collective."""
    if _WEIGHT_BYTES * count_parameters(modules, meshes) > MAX_DIGEST_BYTES:
        return None
    digest_by_name = {name: _sha256(parameter) for module in modules for name, parameter in module.named_parameters()}
    if meshes is not None and (meshes.layout.pp > 1 or unshared(modules)):
        group = meshes.data.get_group("pp") if meshes.layout.pp > 1 else meshes.world.get_group()
        digests_by_rank: list[dict[str, str]] = [{} for _ in range(group.size())]
        dist.all_gather_object(digests_by_rank, digest_by_name, group=group)
        digest_by_name = {
            name: weight_digest for rank_digests in digests_by_rank for name, weight_digest in rank_digests.items()
        }
    return hashlib.sha256(
        "".join(f"{name} {digest_by_name[name]}\n" for name in sorted(digest_by_name)).encode()
    ).hexdigest()


def full_tensor(tensor: Tensor) -> Tensor:
    """The unsharded tensor, on each rank with a shard. Collective. An offloaded shard is first copied to its device."""
    if not isinstance(tensor, DTensor):
        return tensor
    return cast(DTensor, tensor.to(tensor.device_mesh.device_type)).full_tensor()


def _sha256(parameter: Tensor) -> str:
    """The SHA-256 digest (hexadecimal) of the unsharded parameter's bytes. Collective."""
    return hashlib.sha256(full_tensor(parameter).detach().cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()
