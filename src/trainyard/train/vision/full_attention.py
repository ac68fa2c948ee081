"""Bidirectional attention."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def attend(q_BTE: Tensor, k_BSE: Tensor, v_BSE: Tensor, head_dim: int) -> Tensor:
    """Attention of each query to all S keys, (B, T, E), with heads of `head_dim` of the E channels."""
    q, k, v = (heads(x, head_dim) for x in (q_BTE, k_BSE, v_BSE))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def heads(x_BTE: Tensor, head_dim: int) -> Tensor:
    """Splits channels into heads: (B, H, T, C)."""
    return x_BTE.unflatten(2, (-1, head_dim)).transpose(1, 2)
