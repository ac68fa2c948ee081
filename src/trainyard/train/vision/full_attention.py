"""Attention between all positions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def attend(q_BTE: Tensor, k_BSE: Tensor, v_BSE: Tensor, head_dim: int) -> Tensor:
    """(B, T, E), E being whole heads of `head_dim` channels: each query sees all S keys."""
    q, k, v = (heads(x, head_dim) for x in (q_BTE, k_BSE, v_BSE))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def heads(x_BTE: Tensor, head_dim: int) -> Tensor:
    """(B, H, T, C)"""
    return x_BTE.unflatten(2, (-1, head_dim)).transpose(1, 2)
