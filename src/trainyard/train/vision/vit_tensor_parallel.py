"""Tensor parallelism of image transformers: as for decoders, but outputs are gathered before the loss."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from trainyard.train.parallel import tensor_parallel
from trainyard.train.parallel.mesh import Meshes


def split(module: nn.Module, meshes: Meshes) -> None:
    """`attention` has q, k and v, `mlp` up and down; `out` and `head` are matrices too."""
    styles = tensor_parallel.plan(module, meshes.layout, allow_replicated=True)
    styles["head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(module, meshes.data["tp"], styles)
