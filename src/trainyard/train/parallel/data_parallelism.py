"""Data parallelism: replicated (DDP; ZeRO-1 too), sharded (FSDP2: ZeRO-2 and 3), both (HSDP)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainyard.train.parallel import expert_parallel
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.task import SelfSharded


def replicate(module: nn.Module, meshes: Meshes) -> nn.Module:
    """Wraps a module in DDP over the data-parallel ranks. Nothing is broadcast: the seed gives every rank equal initial
    weights, and the modules keep their buffers equal. Parameters of `SelfSharded` modules are left out."""
    layout = meshes.layout
    axes = [axis for axis in ("dp_replicate", "dp_shard") if getattr(layout, axis) > 1]
    group = meshes.data.get_group(axes[0]) if len(axes) == 1 else meshes.world.get_group()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, list(_self_sharded_parameters(module)))
    replicated = DistributedDataParallel(module, process_group=group, init_sync=False, gradient_as_bucket_view=True)
    replicated.broadcast_buffers = False  # the name of the argument differs between torch versions
    return replicated


def shard(module: nn.Module, blocks: Iterable[nn.Module], meshes: Meshes, dtype: torch.dtype, offload: bool) -> None:
    """Shards a module in place by FSDP2. Each block gathers its weights in the compute dtype `dtype`; gradients are
    reduced in float32.

    `offload`: weights, gradients and optimizer state stay in host memory, where the update runs.

    A pipeline stage gathers its weights once for all micro-batches: torch keeps them gathered after a backward pass,
    and a split backward pass (zero bubble) does not produce gradients of resharded weights.
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload_policy = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
    layout = meshes.layout
    mesh = meshes.replicate_shard if layout.dp_replicate > 1 else meshes.data[meshes.shard_name]
    reshard = layout.zero == 3 and layout.pp == 1
    blocks, ignored = list(blocks), set(_self_sharded_parameters(module).values())
    if layout.ep > 1:
        expert_parallel.shard(blocks, meshes, policy, reshard)
    for part in (*blocks, module):
        fully_shard(
            part,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshard,
            offload_policy=offload_policy,
            ignored_params=ignored,
        )


def _self_sharded_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that `SelfSharded` modules shard themselves, by name."""
    parts = [name for name, part in module.named_modules() if isinstance(part, SelfSharded)]
    return {
        f"{part}.{name}": parameter
        for part in parts
        for name, parameter in module.get_submodule(part).named_parameters()
    }
