"""Synthetic batches that a model can learn: tokens of a noisy recurrence, and images with a class-dependent pattern."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

VOCABULARY = 64
CLASSES = 10
IGNORED = -100
"""Label of a token without a target."""


class Tokens(NamedTuple):
    """`inputs`, `labels`: [sample, position]; a label is the token after its input."""

    inputs: Tensor
    labels: Tensor


class Images(NamedTuple):
    """`pixels`: [sample, channel, row, column]; `classes`: [sample]."""

    pixels: Tensor
    classes: Tensor


def token_batch(seed: int, step: int, samples: int = 4, length: int = 16) -> Tokens:
    """The batch of a step. Each token follows from the one before; one in eight is random."""
    draw = _generator(seed, step)
    noise = torch.randint(VOCABULARY, (samples, length + 1), generator=draw)
    is_random = torch.rand((samples, length + 1), generator=draw) < 1 / 8
    tokens = [noise[:, 0]]
    for position in range(1, length + 1):
        tokens.append(torch.where(is_random[:, position], noise[:, position], (5 * tokens[-1] + 7) % VOCABULARY))
    sequence = torch.stack(tokens, dim=1)
    return Tokens(sequence[:, :-1], sequence[:, 1:])


def masked_token_batch(seed: int, step: int, samples: int = 4, length: int = 16) -> Tokens:
    """A batch in which each sample has another number of labels, as padded samples of different lengths do."""
    inputs, labels = token_batch(seed, step, samples, length)
    lengths = torch.randint(2, length + 1, (samples, 1), generator=_generator(seed, step + 1_000_000))
    return Tokens(inputs, torch.where(torch.arange(length) < lengths, labels, IGNORED))


def image_batch(seed: int, step: int, samples: int = 8, size: int = 12) -> Images:
    """The batch of a step: waves whose direction depends on the class, with noise."""
    draw = _generator(seed, step)
    classes = torch.randint(CLASSES, (samples,), generator=draw)
    angle = classes * (torch.pi / CLASSES)
    grid = torch.arange(size) / 2
    phase = angle.cos()[:, None, None] * grid[:, None] + angle.sin()[:, None, None] * grid
    waves = torch.stack([(phase + shift).sin() for shift in (0.0, 0.7, 1.4)], dim=1)
    return Images((waves + 0.3 * torch.randn(waves.shape, generator=draw)).to(torch.get_default_dtype()), classes)


def token_loss(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of `logits` [sample, position, token]; labels `IGNORED` are left out."""
    return F.cross_entropy(logits.flatten(0, 1).float() if logits.dtype == torch.bfloat16 else logits.flatten(0, 1),
                           labels.flatten(), ignore_index=IGNORED, reduction=reduction)  # fmt: skip


def _generator(seed: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + step)
