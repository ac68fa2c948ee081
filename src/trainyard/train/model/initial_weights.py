"""Weight initialization and weight digests, both independent of the layout."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trainyard.train.parallel.mesh import Meshes
from trainyard.train.task import SelfSharded

_WEIGHT_BYTES = 4
"""Weights are float32."""
MAX_DIGEST_BYTES = 2 * 10**9
"""Maximum bytes of weights for a digest: gathering and hashing more would take seconds."""


def fill(module: nn.Module, draw: Callable[[str, torch.Size], Tensor]) -> None:
    """Initializes a module: draws each unsharded parameter and persistent buffer on the host and keeps this rank's
    shard. Other buffers are zero. `draw`: (name, unsharded shape) -> values, equal on every rank."""
    state = module.state_dict(keep_vars=True)
    with torch.no_grad():
        for buffer in module.buffers():
            buffer.zero_()
        for name, values in state.items():
            value = draw(name, values.shape).to(values.device)
            if isinstance(values, DTensor):
                # src_data_rank=None: each rank takes its part of its own `value`, which is equal on all; none is sent.
                value = distribute_tensor(value, values.device_mesh, values.placements, src_data_rank=None)
            values.copy_(value)


def normal(name: str, shape: torch.Size, seed: int, deviation: float) -> Tensor:
    """Normal random numbers (float32) with mean 0 and standard deviation `deviation`, from a generator seeded by (seed,
    name)."""
    digest = hashlib.blake2b(struct.pack("<Q", seed) + name.encode(), digest_size=8).digest()
    own_seed = int.from_bytes(digest, "little") >> 1  # 63 bits: never negative as an int64
    generator = torch.Generator().manual_seed(own_seed)
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)


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
