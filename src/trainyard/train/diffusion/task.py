"""The `Task` of telling the noise in latents, or the way out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job import Job
from trainyard.train.diffusion.dit import DiffusionTransformer
from trainyard.train.diffusion.sizes import Dit, Sizes
from trainyard.train.diffusion.unet import UNetwork
from trainyard.train.parallel.mesh import Meshes
from trainyard.train.precision import computes
from trainyard.train.span import span
from trainyard.train.vision.initial import initial
from trainyard.train.vision.split import split


class Denoise:
    """A `Task` and `Splits`. Outputs and targets are shaped as the latents."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes = sizes
        self.seed = job.recipe.seed
        self.dtype = computes(job.recipe)

    def module(self) -> nn.Module:
        if isinstance(self.sizes, Dit):
            return DiffusionTransformer(self.sizes, self.dtype)
        return UNetwork(self.sizes, self.dtype)

    def blocks(self, module: nn.Module) -> Mapping[str, nn.Module]:
        return cast("DiffusionTransformer | UNetwork", module).blocks

    def split(self, module: nn.Module, meshes: Meshes) -> None:
        """tp: of a transformer."""
        if meshes.layout.tp > 1:
            split(module, meshes)

    def draw(self, name: str, shape: torch.Size) -> Tensor:
        return initial(name, shape, self.seed)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """The mean square of what it is off by."""
        with span("loss"):
            return F.mse_loss(outputs.float(), targets[0])
