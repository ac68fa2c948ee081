"""Noisy latents of images: the samples of the diffusion models. All draws are functions of (seed, step, index).

Neither latents nor text come from a pretrained encoder. Latents are pixel-unshuffled grey images, with as many pixels
per square as a latent pixel has channels. The text of each image class is a fixed set of normal random numbers.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.job import Job
from trainyard.train.diffusion.diffusion_sizes import Dit, Sizes
from trainyard.train.task import Batch
from trainyard.train.vision import images
from trainyard.train.vision.images import Pixels

MAX_CLASSES = 1000
"""Maximum number of image classes, and the number of synthetic ones."""
NOISE_LEVELS = 1000
"""Noise levels of the network that predicts the noise (Ho et al. 2020, arXiv:2006.11239, section 4)."""
BETAS = (0.00085, 0.012)
"""First and last beta of Stable Diffusion 1's schedule, linear in their square roots (CompVis/stable-diffusion,
configs/stable-diffusion/v1-inference.yaml)."""


class Noisy(NamedTuple):
    """A training sample. `mixed`: latents with noise added according to `time`; `target`: what the model predicts."""

    mixed: Pixels
    time: float
    target: Pixels


def latents(picture_HW: Pixels, channels: int) -> Pixels:
    """Pixel-unshuffles an image into latents (channels, H / f, W / f), with channels = f * f."""
    side = isqrt(channels)
    rows, columns = (length // side for length in picture_HW.shape)
    return picture_HW.reshape(rows, side, columns, side).transpose(1, 3, 0, 2).reshape(channels, rows, columns)


def flow(clean: Pixels, draws: np.random.Generator) -> Noisy:
    """A rectified-flow sample: a point on the line from the latents (time 0) to the noise (time 1), and its direction.

    Times follow a logit-normal distribution (arXiv:2403.03206, sections 2 and 3.1).
    """
    time = float(1 / (1 + np.exp(-draws.standard_normal())))
    noise = draws.standard_normal(clean.shape, dtype=np.float32)
    return Noisy(mixed=_mix(clean, 1 - time, noise, time), time=time, target=noise - clean)


def diffuse(clean: Pixels, draws: np.random.Generator) -> Noisy:
    """A DDPM sample at one of `NOISE_LEVELS` noise levels, with its noise (arXiv:2006.11239, algorithm 1)."""
    time = int(draws.integers(NOISE_LEVELS))
    noise = draws.standard_normal(clean.shape, dtype=np.float32)
    signal_variance = _signal_variance()[time]
    return Noisy(mixed=_mix(clean, signal_variance**0.5, noise, (1 - signal_variance) ** 0.5), time=time, target=noise)


def _mix(clean: Pixels, latent_factor: float, noise: Pixels, noise_factor: float) -> Pixels:
    """`latent_factor` x the clean latents + `noise_factor` x the noise, as float32."""
    return (latent_factor * clean + noise_factor * noise).astype(np.float32)


@lru_cache(maxsize=1)
def _signal_variance() -> NDArray[np.float64]:
    """Fraction of the latents' variance that remains at each noise level, (NOISE_LEVELS,): the product of 1 - beta over
    the levels up to it. The result is cached; do not change it."""
    first, last = BETAS
    return np.cumprod(1 - np.linspace(first**0.5, last**0.5, NOISE_LEVELS) ** 2)


@lru_cache(maxsize=16)
def text(seed: int, label: int, tokens: int, width: int) -> Pixels:
    """The synthetic text of a class: (tokens, width) normal random numbers."""
    return images.rng("text", seed, 0, label).standard_normal((tokens, width), dtype=np.float32)


class NoisyLatents:
    """`Samples`: inputs are latents (B, channels, L, L), times (B), text (B, S, W) and, for a transformer, a pooled
    text vector (B, W'); targets have the shape of the latents."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes, self.seed = sizes, job.recipe.seed
        self.pictures = images.read(job.recipe.dataset, MAX_CLASSES)
        self.source = f"{self.pictures.source}; latents are squares of their pixels, text is synthetic"
        self.sha256 = self.pictures.sha256

    def batch(self, step: int, indices: range) -> Batch:
        """The samples `indices` of the global batch of `step`, with inputs and targets as the class documents."""
        samples = [self._sample(step, index) for index in indices]
        inputs = tuple(torch.from_numpy(np.stack(parts)) for parts in zip(*(inputs for inputs, _ in samples)))
        return Batch(inputs, (torch.from_numpy(np.stack([target for _, target in samples])),))

    def _sample(self, step: int, index: int) -> tuple[tuple[Pixels, ...], Pixels]:
        """Sample `index` of a step: the model's inputs (noisy latent, time, text, for a `Dit` the pooled text) and the
        target. The same numbers for the same seed."""
        sizes = self.sizes
        side = sizes.latent * isqrt(sizes.channels)
        picture, label = images.sample(self.pictures, side, 1, self.seed, step, index)
        draws = images.rng("noise", self.seed, step, index)
        clean = latents(picture[0], sizes.channels)
        noisy = flow(clean, draws) if isinstance(sizes, Dit) else diffuse(clean, draws)
        embedding = text(self.seed, label, sizes.text_tokens, sizes.text_width)
        inputs = (noisy.mixed, np.array(noisy.time, np.float32), embedding)
        if isinstance(sizes, Dit):
            # Labels beyond MAX_CLASSES seed the pooled text, so that it is independent of the other.
            inputs += (text(self.seed, label + MAX_CLASSES, 1, sizes.pooled_width)[0],)
        return inputs, noisy.target
