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
    """Equal by seed on all ranks: nothing to broadcast. Buffers are the task's own to keep equal."""
    layout = meshes.layout
    axes = [axis for axis in ("dp_replicate", "dp_shard") if getattr(layout, axis) > 1]
    group = meshes.data.get_group(axes[0]) if len(axes) == 1 else meshes.world.get_group()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, list(_placed(module)))
    replicated = DistributedDataParallel(module, process_group=group, init_sync=False, gradient_as_bucket_view=True)
    replicated.broadcast_buffers = False  # as an argument it has another name in each torch
    return replicated


def shard(module: nn.Module, blocks: Iterable[nn.Module], meshes: Meshes, dtype: torch.dtype, offload: bool) -> None:
    """Each block gathers its weights in the compute dtype; gradients are reduced in float32. `offload`: weights,
    gradients and so the optimizer's state wait in the host's memory, where the update is done.

    In a pipeline the stage gathers, once for all its micro-batches: torch keeps weights gathered after a backward pass
    there, and finds no gradients for sharded ones where the backward pass is split (zero bubble).
    """
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    waits = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
    layout = meshes.layout
    mesh = meshes.replicate_shard if layout.dp_replicate > 1 else meshes.data[meshes.shard_name]
    reshard = layout.zero == 3 and layout.pp == 1
    blocks, left = list(blocks), set(_placed(module).values())
    if layout.ep > 1:
        expert_parallel.shard(blocks, meshes, policy, reshard)
    for part in (*blocks, module):
        fully_shard(
            part,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=reshard,
            offload_policy=waits,
            ignored_params=left,
        )


def _placed(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that a part of the model spreads itself."""
    parts = [name for name, part in module.named_modules() if isinstance(part, SelfSharded)]
    return {
        f"{part}.{name}": parameter
        for part in parts
        for name, parameter in module.get_submodule(part).named_parameters()
    }
