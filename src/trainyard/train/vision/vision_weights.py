"""Weight initialization by a parameter's name and shape."""

from __future__ import annotations

import torch
from torch import Tensor

from trainyard.train.model import initial_weights

POSITION_DEVIATION = 0.02
"""Standard deviation of learned positions (arXiv:2010.11929, the authors' code)."""

HEAD_DEVIATION = 0.01
"""Standard deviation of the last matrix (Goyal et al. 2017, arXiv:1706.02677, section 5.1)."""


def initial(name: str, shape: torch.Size, seed: int) -> Tensor:
    """The initial value of the parameter or buffer `name`, a float32 tensor of `shape`.

    Norms are the identity, other vectors zero. Matrices, including patch embeddings, are normal with the variance of
    Glorot and Bengio (2010); other convolutions with that of He et al. (2015, arXiv:1502.01852) for the backward pass.
    """
    last_part = name.rpartition(".")[2]
    if len(shape) == 1:
        return torch.ones(shape) if last_part in ("weight", "running_var") else torch.zeros(shape)
    if name == "head.weight":
        return initial_weights.normal(name, shape, seed, HEAD_DEVIATION)
    if last_part == "position":
        return initial_weights.normal(name, shape, seed, POSITION_DEVIATION)
    if len(shape) == 2 or name.endswith("patches.weight"):
        return initial_weights.normal(name, shape, seed, (2 / (shape[0] + shape[1:].numel())) ** 0.5)
    return initial_weights.normal(name, shape, seed, (2 / (shape[0] * shape[2] * shape[3])) ** 0.5)
