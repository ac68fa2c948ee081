"""A decoder spread over the ranks: alone, replicated (DDP), sharded (FSDP2), or sharded and replicated (HSDP)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainyard.job import Job, Layout
from trainyard.train import weights
from trainyard.train.model import Decoder
from trainyard.train.ranks import Ranks

DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Spread:
    """`decoder` has the parameters under their plain names; `call` is what to run forward."""

    def __init__(self, job: Job, ranks: Ranks) -> None:
        dtype = DTYPE[job.recipe.dtype]
        with torch.device("meta"):
            self.decoder = Decoder(job.model, dtype, remat=job.recipe.remat == "full", compiled=job.recipe.compile)
        mesh = _mesh(job.layout, ranks) if ranks.world > 1 else None
        if mesh is not None and job.layout.dp_shard > 1:
            _shard(self.decoder, mesh, job.layout, dtype)
        self.decoder.to_empty(device=ranks.device)
        weights.fill(self.decoder, job.model.layers, job.recipe.seed)
        self.call: nn.Module = self.decoder
        if mesh is not None and job.layout.dp_shard == 1:
            # Equal by seed on all ranks: nothing to broadcast.
            group = mesh.get_group("dp_replicate")
            self.call = DistributedDataParallel(
                self.decoder, process_group=group, init_sync=False, gradient_as_bucket_view=True
            )

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch: gradients travel after the last one only."""
        if isinstance(self.decoder, FSDPModule):
            self.decoder.set_requires_gradient_sync(last)
            self.decoder.set_is_last_backward(last)
        elif isinstance(self.call, DistributedDataParallel) and not last:
            return self.call.no_sync()
        return nullcontext()


def _mesh(layout: Layout, ranks: Ranks) -> DeviceMesh:
    """Always both axes, so that each has its own process group, which a profile names."""
    shape = (layout.dp_replicate, layout.dp_shard)
    return init_device_mesh(ranks.device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))


def _shard(decoder: Decoder, mesh: DeviceMesh, layout: Layout, dtype: torch.dtype) -> None:
    """Each block gathers its weights in the compute dtype; gradients are reduced in float32."""
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    axes = mesh if layout.dp_replicate > 1 else mesh["dp_shard"]
    for part in (*decoder.layers, decoder):
        fully_shard(part, mesh=axes, mp_policy=policy)
