"""The base class of tasks on images and latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

import torch
from torch import nn

from trainyard.job import Job
from trainyard.train.model.distributions import Distribution
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.step.precision import compute_dtype
from trainyard.train.task import Ends
from trainyard.train.vision.vision_weights import find_distribution
from trainyard.train.vision.vit_tensor_parallel import split

Sizes = TypeVar("Sizes")


class ImageTask(Generic[Sizes]):
    """Base of a `Task`, `HasEnds` and `SplitTask`. A subclass defines `loss` and `module`, whose result has `blocks` by
    name and `last_layers`."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes, self.seed = sizes, job.recipe.seed
        self.channels_last = job.recipe.channels_last
        self.dtype = compute_dtype(job.recipe)

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        return cast("Mapping[str, nn.Module]", module.blocks)

    def ends(self, module: nn.Module) -> Ends:
        """Implements `HasEnds`: the modules after the blocks. Those before them, some of whose parameters are the
        model's own, stay in the root unit."""
        return Ends(last=cast("Sequence[nn.Module]", module.last_layers))

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """Applies tp, which only transformers support."""
        if meshes.layout.tp > 1:
            split(module, meshes)

    def distribution(self, name: str, shape: torch.Size) -> Distribution:
        return find_distribution(name, shape)
