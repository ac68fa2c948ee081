"""The `Task` of denoising: predicts the noise in latents, or the direction from latents to noise."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.train.diffusion.diffusion_sizes import Dit, Sizes
from trainyard.train.diffusion.dit import DiffusionTransformer
from trainyard.train.diffusion.unet import UNetwork
from trainyard.train.step.profiler_span import span
from trainyard.train.vision.network_task import ImageTask


class Denoise(ImageTask[Sizes]):
    """Outputs and targets have the shape of the latents."""

    def module(self) -> nn.Module:
        if isinstance(self.sizes, Dit):
            return DiffusionTransformer(self.sizes, self.dtype)
        return UNetwork(self.sizes, self.dtype, self.channels_last)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """Mean squared error."""
        with span("loss"):
            return F.mse_loss(outputs.float(), targets[0])
