"""Initial weights that depend on the seed alone, and digests of all weights: the same for any layout."""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

DIGEST_CAP = 2 * 10**9
"""Bytes of weights beyond which no digest is taken: gathering and hashing them would take seconds."""

_STD = 0.02


def fill(model: nn.Module, layers: int, seed: int) -> None:
    """Draws every parameter on the host from a stream of its own, (seed, name), and keeps this rank's shard.

    Normal with deviation 0.02, the two projections back to the residual stream divided by sqrt(2 * layers) (GPT-2's
    scheme); norms are one.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = _draw(name, parameter.shape, layers, seed).to(parameter.device)
            if isinstance(parameter, DTensor):
                whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.copy_(whole)


def _draw(name: str, shape: torch.Size, layers: int, seed: int) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    mixed = hashlib.blake2b(struct.pack("<Q", seed) + name.encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(mixed, "little") >> 1)
    into_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
    return torch.empty(shape).normal_(0.0, _STD / (2 * layers) ** 0.5 if into_residual else _STD, generator=generator)


def count(model: nn.Module) -> int:
    """Parameters of the whole model; a shard counts as what it is a shard of."""
    return sum(parameter.numel() for parameter in model.parameters())


def digest(model: nn.Module) -> str | None:
    """sha256 over names and values of all weights, gathered: every rank must call. None above `DIGEST_CAP`."""
    if sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) > DIGEST_CAP:
        return None
    total = hashlib.sha256()
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        total.update(name.encode())
        total.update(whole.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()
