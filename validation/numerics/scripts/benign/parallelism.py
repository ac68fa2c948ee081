"""Wraps a model for data, fully sharded or tensor parallelism over all ranks."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

TENSOR_PARALLEL: dict[str, ParallelStyle] = {
    "layers.*.attention.query": ColwiseParallel(),
    "layers.*.attention.key": ColwiseParallel(),
    "layers.*.attention.value": ColwiseParallel(),
    "layers.*.attention.out": RowwiseParallel(),
    "layers.*.up": ColwiseParallel(),
    "layers.*.down": RowwiseParallel(),
}
"""Layers of the transformer that are split."""


def parallelise(model: nn.Module, kind: str | None, mesh: DeviceMesh) -> nn.Module:
    """The model over all ranks of the mesh. `kind`: "ddp", "fsdp", "tp" or None."""
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "tp":
        return parallelize_module(model, mesh, TENSOR_PARALLEL)
    if kind == "fsdp":
        for layer in model.get_submodule("layers").children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model
