"""What the `Task`s of networks over pictures and latents have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from trainyard.job import Job
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.step.precision import computes
from trainyard.train.vision.vision_weights import initial
from trainyard.train.vision.vit_tensor_parallel import split

Sizes = TypeVar("Sizes")


class ImageTask(Generic[Sizes]):
    """A `Task` and a `SplitTask`, without `module`, which has `blocks` by name, and `loss`."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes, self.seed = sizes, job.recipe.seed
        self.dtype = computes(job.recipe)

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        return cast("Mapping[str, nn.Module]", module.blocks)

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """tp: of a transformer."""
        if meshes.layout.tp > 1:
            split(module, meshes)

    def draw(self, name: str, shape: torch.Size) -> Tensor:
        return initial(name, shape, self.seed)
