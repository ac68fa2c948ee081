"""The `Task` of telling the noise in latents, or the way out of it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job import Job
from trainyard.train.diffusion.diffusion_sizes import Dit, Sizes
from trainyard.train.diffusion.dit import DiffusionTransformer
from trainyard.train.diffusion.unet import UNetwork
from trainyard.train.step.profiler_span import span
from trainyard.train.vision.network_task import OverPictures


class Denoise(OverPictures):
    """Outputs and targets are shaped as the latents."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        super().__init__(job)
        self.sizes = sizes

    def module(self) -> nn.Module:
        if isinstance(self.sizes, Dit):
            return DiffusionTransformer(self.sizes, self.dtype)
        return UNetwork(self.sizes, self.dtype)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """The mean square of what it is off by."""
        with span("loss"):
            return F.mse_loss(outputs.float(), targets[0])
