"""Data parallelism: replicated (DDP), sharded (FSDP2: ZeRO-2 and 3), both (HSDP)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainyard.job import Layout
from trainyard.train.parallel.mesh import Meshes


def replicates(layout: Layout) -> bool:
    """Whether DistributedDataParallel does it all: it knows no other axis."""
    return layout.dp_replicate == layout.ranks > 1


def replicate(module: nn.Module, meshes: Meshes) -> nn.Module:
    """Equal by seed on all ranks: nothing to broadcast."""
    group = meshes.data.get_group("dp_replicate")
    return DistributedDataParallel(module, process_group=group, init_sync=False, gradient_as_bucket_view=True)


def shard(module: nn.Module, blocks: Iterable[nn.Module], meshes: Meshes, dtype: torch.dtype) -> None:
    """Each block gathers its weights in the compute dtype; gradients are reduced in float32."""
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    layout = meshes.layout
    mesh = meshes.replicate_shard if layout.dp_replicate > 1 else meshes.data[meshes.shard_name]
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=layout.zero == 3)
