"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

Shapes: B sequences, H heads, T positions, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_table(positions_T: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of each position, each (T, C) float32 with C = `head_dim`.

    Channel pair c of C / 2 turns by position x base^(-2 c / C); the table repeats the angles for both halves of C.
    """
    rate = base ** (-torch.arange(0, head_dim, 2, device=positions_T.device, dtype=torch.float32) / head_dim)
    angle = torch.outer(positions_T.float(), rate).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x_BHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Rotates each channel pair (c, c + C/2) by its position's angle, in float32."""
    x = x_BHTC.float()
    left, right = x.chunk(2, dim=-1)
    return (x * cos_TC + torch.cat((-right, left), dim=-1) * sin_TC).to(x_BHTC.dtype)
