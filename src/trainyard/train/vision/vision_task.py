"""The `Task` of image classification, and its `Samples`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.job import Job
from trainyard.train.step.profiler_span import span
from trainyard.train.task import Batch
from trainyard.train.vision import images
from trainyard.train.vision.network_task import ImageTask
from trainyard.train.vision.resnet import ResidualNetwork
from trainyard.train.vision.vision_sizes import Sizes, Vit
from trainyard.train.vision.vit import VisionTransformer


class Classify(ImageTask[Sizes]):
    """Image classification. Outputs are logits (B, classes), targets (B)."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        super().__init__(job, sizes)
        self.label_smoothing = job.recipe.label_smoothing

    def module(self) -> nn.Module:
        if isinstance(self.sizes, Vit):
            return VisionTransformer(self.sizes, self.dtype)
        return ResidualNetwork(self.sizes, self.dtype, self.channels_last)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...]) -> Tensor:
        """Cross-entropy in nats per image, with the labels smoothed by the recipe's `label_smoothing` (Szegedy et al.
        2015, arXiv:1512.00567, section 7)."""
        with span("loss"):
            return F.cross_entropy(outputs.float(), targets[0], label_smoothing=self.label_smoothing)


class Labelled:
    """`Samples`: images (B, C, H, W) from -1 to 1, and their classes (B)."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes, self.seed = sizes, job.recipe.seed
        self.pictures = images.read(job.recipe.dataset, sizes.classes)
        self.source, self.sha256 = self.pictures.source, self.pictures.sha256

    def batch(self, step: int, indices: range) -> Batch:
        side, channels = self.sizes.image, self.sizes.channels
        drawn = [images.sample(self.pictures, side, channels, self.seed, step, index) for index in indices]
        images_BCHW = torch.stack([torch.from_numpy(image) for image, _ in drawn])
        return Batch((images_BCHW,), (torch.tensor([label for _, label in drawn]),))
