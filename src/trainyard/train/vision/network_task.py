"""The base class of tasks on images and latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar, cast

import torch
from torch import nn

from trainyard.job import Job
from trainyard.train.model.distributions import Distribution
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.step.precision import compute_dtype
from trainyard.train.vision.vision_weights import find_distribution
from trainyard.train.vision.vit_tensor_parallel import split

Sizes = TypeVar("Sizes")


class ImageTask(Generic[Sizes]):
    """Base of a `Task` and `SplitTask`. A subclass defines `loss` and `module`, whose result has `blocks` by name."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes, self.seed = sizes, job.recipe.seed
        self.dtype = compute_dtype(job.recipe)

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        return cast("Mapping[str, nn.Module]", module.blocks)

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """Applies tp, which only transformers support."""
        if meshes.layout.tp > 1:
            split(module, meshes)

    def distribution(self, name: str, shape: torch.Size) -> Distribution:
        return find_distribution(name, shape)
