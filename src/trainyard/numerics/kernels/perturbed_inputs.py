"""Inputs of an operation, moved by random relative amounts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from trainyard.numerics.compare.comparison_rule import UNIT_ROUNDOFF

SAMPLES = 8
"""Perturbed evaluations of an operation."""
_BLOCKS = 2
"""Those of them in which runs of elements move together, as rounding a partial sum moves all of its terms."""


def perturbed_inputs(
    values: Any, sample: int, roundoff: float, scalar_roundoff: float = UNIT_ROUNDOFF["float32"], seed: int = 0
) -> Any:
    """Arguments whose float64 tensors are moved by `roundoff` relative to each element, up or down at random, and whose
    Python floats by `scalar_roundoff`, unless float32 holds them exactly. A tensor that is passed twice moves once.

    `sample`: of `SAMPLES`. In the first, each element moves on its own; in the last, all move up. `roundoff`:
    0 for copies.
    """
    random = np.random.default_rng((seed, sample))
    generators: dict[torch.device, torch.Generator] = {}
    moved: dict[int, Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, float):
            is_rounded = roundoff and float(np.float32(value)) != value
            return value * (1 + (scalar_roundoff if random.integers(2) else -scalar_roundoff)) if is_rounded else value
        if not isinstance(value, Tensor):
            return value
        if id(value) not in moved:
            if value.device not in generators:
                generators[value.device] = torch.Generator(value.device).manual_seed(int(random.integers(1 << 31)))
            is_moved = value.dtype == torch.float64
            moved[id(value)] = _moved(value, sample, roundoff, generators[value.device]) if is_moved else value.clone()
        return moved[id(value)]

    return tree_map(move, values)


def _moved(tensor: Tensor, sample: int, roundoff: float, generator: torch.Generator) -> Tensor:
    if sample < SAMPLES - 1 - _BLOCKS:
        signs = _signs(tensor.shape, tensor.device, generator)
    elif sample < SAMPLES - 1:
        signs = _block_signs(tensor, generator)
    else:
        return tensor * (1 + roundoff)
    return tensor * signs.to(torch.float64).mul_(2 * roundoff).add_(1 - roundoff)


def _block_signs(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Signs that are products of a sign for each run of indices in each dimension; the length of the runs is random."""
    product = torch.zeros((1,) * tensor.ndim, dtype=torch.bool, device=tensor.device)
    for dimension, size in enumerate(tensor.shape):
        levels = max(1, size.bit_length())
        run = 1 << int(torch.randint(levels, (), generator=generator, device=tensor.device))
        signs = _signs((-(-size // run),), tensor.device, generator).repeat_interleave(run)[:size]
        product = product ^ signs.view([-1 if at == dimension else 1 for at in range(tensor.ndim)])
    return product


def _signs(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, dtype=torch.bool, device=device, generator=generator)
