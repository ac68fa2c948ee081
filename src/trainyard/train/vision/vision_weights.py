"""Distributions of initial weights by a parameter's name and shape."""

from __future__ import annotations

import torch

from trainyard.train.model.distributions import Constant, Distribution, Normal

POSITION_DEVIATION = 0.02
"""Standard deviation of learned positions (arXiv:2010.11929, the authors' code)."""

HEAD_DEVIATION = 0.01
"""Standard deviation of the last matrix (Goyal et al. 2017, arXiv:1706.02677, section 5.1)."""

_CUTOFF = 2.0
_TRUNCATED_DEVIATION = 0.8796256610342398
"""Standard deviation of the standard normal distribution truncated at `_CUTOFF`."""


def find_distribution(name: str, shape: torch.Size) -> Distribution:
    """The distribution of the initial values of the parameter or buffer `name` of the unsharded `shape`.

    Norms are the identity, other vectors zero. Matrices are normal with the variance of Glorot and Bengio (2010). The
    convolution of a ViT's patches is normal, truncated at two standard deviations, with variance 1 / inputs (LeCun et
    al. 1998; the authors' code of arXiv:2010.11929). Other convolutions have the variance of He et al. (2015,
    arXiv:1502.01852) for the backward pass.
    """
    last_part = name.rpartition(".")[2]
    if len(shape) == 1:
        return Constant(1.0 if last_part in ("weight", "running_var") else 0.0)
    if name == "head.weight":
        return Normal(HEAD_DEVIATION)
    if last_part == "position":
        return Normal(POSITION_DEVIATION)
    if len(shape) == 2:
        return Normal((2 / sum(shape)) ** 0.5)
    if name == "patches.weight":
        return Normal(shape[1:].numel() ** -0.5 / _TRUNCATED_DEVIATION, _CUTOFF)
    return Normal((2 / (shape[0] * shape[2] * shape[3])) ** 0.5)
