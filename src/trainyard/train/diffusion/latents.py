"""Latents of pictures, made noisy: the samples of diffusion. All draws are functions of (seed, step, index).

No pretrained encoder makes the latents: a picture in grey is cut into squares of as many pixels as a latent pixel has
channels (the fixed arrangement "pixel unshuffle"). No pretrained encoder makes the text: each class of pictures has
normal numbers of its own.
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

TEXTS = 1000
"""Classes of pictures at most, and of synthetic ones."""
TIMES = 1000
"""Noise levels of the network that tells the noise (Ho et al. 2020, arXiv:2006.11239, section 4)."""
BETAS = (0.00085, 0.012)
"""Stable Diffusion 1's first and last share of new noise; their square roots rise evenly (CompVis/stable-diffusion,
configs/stable-diffusion/v1-inference.yaml)."""


class Noisy(NamedTuple):
    """`mixed`: latents and noise, so much of each as `time` says; `aim` is what the model is to tell."""

    mixed: Pixels
    time: float
    aim: Pixels


def latents(picture_HW: Pixels, channels: int) -> Pixels:
    """(channels, H / f, W / f) with f * f channels: each a pixel of the squares' own."""
    side = isqrt(channels)
    rows, columns = (length // side for length in picture_HW.shape)
    return picture_HW.reshape(rows, side, columns, side).transpose(1, 3, 0, 2).reshape(channels, rows, columns)


def flow(clean: Pixels, draws: np.random.Generator) -> Noisy:
    """On the straight way from the latents (time 0) to the noise (time 1), with its direction; times by the logistic
    function of a normal number (arXiv:2403.03206, sections 2 and 3.1)."""
    time = float(1 / (1 + np.exp(-draws.standard_normal())))
    noise = draws.standard_normal(clean.shape, dtype=np.float32)
    return Noisy(_mixed(clean, 1 - time, noise, time), time, noise - clean)


def diffuse(clean: Pixels, draws: np.random.Generator) -> Noisy:
    """At one of `TIMES` noise levels, with the noise (arXiv:2006.11239, algorithm 1)."""
    time = int(draws.integers(TIMES))
    noise = draws.standard_normal(clean.shape, dtype=np.float32)
    left = _left()[time]
    return Noisy(_mixed(clean, left**0.5, noise, (1 - left) ** 0.5), time, noise)


def _mixed(clean: Pixels, keep: float, noise: Pixels, add: float) -> Pixels:
    return (keep * clean + add * noise).astype(np.float32)


@lru_cache(maxsize=1)
def _left() -> NDArray[np.float64]:
    """Share of the latents' variance that is left at each noise level."""
    first, last = BETAS
    return np.cumprod(1 - np.linspace(first**0.5, last**0.5, TIMES) ** 2)


@lru_cache(maxsize=16)
def text(seed: int, label: int, tokens: int, width: int) -> Pixels:
    """(tokens, width) normal numbers: what stands for the text of a class."""
    return images.rng("text", seed, 0, label).standard_normal((tokens, width), dtype=np.float32)


class NoisyLatents:
    """`Samples`: inputs are latents (B, channels, L, L), times (B), text (B, S, W) and, for a transformer, one vector
    more (B, W'); targets are shaped as the latents."""

    def __init__(self, job: Job, sizes: Sizes) -> None:
        self.sizes, self.seed = sizes, job.recipe.seed
        self.pictures = images.read(job.recipe.text, TEXTS)
        self.source = f"{self.pictures.source}; latents are squares of their pixels, text is synthetic"
        self.sha256 = self.pictures.sha256

    def batch(self, step: int, indices: range) -> Batch:
        drawn = [self._one(step, index) for index in indices]
        inputs = tuple(torch.from_numpy(np.stack(parts)) for parts in zip(*(given for given, _ in drawn)))
        return Batch(inputs, (torch.from_numpy(np.stack([aim for _, aim in drawn])),))

    def _one(self, step: int, index: int) -> tuple[tuple[Pixels, ...], Pixels]:
        sizes = self.sizes
        side = sizes.latent * isqrt(sizes.channels)
        picture, label = images.sample(self.pictures, side, 1, self.seed, step, index)
        draws = images.rng("noise", self.seed, step, index)
        clean = latents(picture[0], sizes.channels)
        noisy = flow(clean, draws) if isinstance(sizes, Dit) else diffuse(clean, draws)
        words = text(self.seed, label, sizes.text_tokens, sizes.text_width)
        given = (noisy.mixed, np.array(noisy.time, np.float32), words)
        if isinstance(sizes, Dit):
            given += (text(self.seed, label + TEXTS, 1, sizes.pooled_width)[0],)
        return given, noisy.aim
