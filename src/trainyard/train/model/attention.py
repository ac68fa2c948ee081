"""Causal attention, grouped-query: K key/value heads serve H query heads (Ainslie et al. 2023, arXiv:2305.13245).

Shapes: B sequences, T positions, D width, H query heads, K key/value heads, C head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

from trainyard.model import Model
from trainyard.train.model.layers import Linear, RmsNorm
from trainyard.train.model.rope import rotate


class Core(nn.Module):
    """Causal attention over full sequences. A module, so that context parallelism can replace it.

    Values may have a different width than queries and keys; the output has theirs. If there are fewer queries than
    keys, the queries are those of the last positions.
    """

    def forward(self, q_BHTC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor) -> Tensor:
        """Causal attention of queries (B, H, T, C) to keys and values (B, K, T, C), with K <= H heads; with fewer
        queries than keys, the queries are the last positions. Returns (B, H, T, C)."""
        grouped = q_BHTC.shape[1] != k_BKTC.shape[1]  # several query heads share a key/value head
        if grouped and q_BHTC.is_cuda and q_BHTC.dtype == torch.float32:
            # CUDA's only fused kernel for float32 does not support grouped heads.
            k_BKTC, v_BKTC = (x.repeat_interleave(q_BHTC.shape[1] // x.shape[1], dim=1) for x in (k_BKTC, v_BKTC))
            grouped = False
        queries, keys = q_BHTC.shape[2], k_BKTC.shape[2]
        if queries == keys:
            return F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, is_causal=True, enable_gqa=grouped)
        # torch cannot create this tensor subclass in a dispatch mode (`activation_checkpoint = "selective"`).
        with _disable_current_modes():
            mask = causal_lower_right(queries, keys)
        return F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, attn_mask=mask, enable_gqa=grouped)


class Attention(nn.Module):
    """Grouped-query attention over all heads; under tensor parallelism over this rank's.

    With `qk_norm`, the queries and keys of each head are normalized before the rotary embedding, with one weight per
    channel shared by all heads (Henry et al. 2020, arXiv:2010.04245; as in Qwen 3).
    """

    def __init__(self, model: Model) -> None:
        """Projections to `heads` query heads and `kv_heads` key/value heads of `head_dim` channels, and back."""
        super().__init__()
        self.head_dim = model.head_dim
        biased = model.bias != "none"
        self.q = Linear(model.hidden_size, model.heads * model.head_dim, biased)
        self.k = Linear(model.hidden_size, model.kv_heads * model.head_dim, biased)
        self.v = Linear(model.hidden_size, model.kv_heads * model.head_dim, biased)
        self.q_norm = RmsNorm(model.head_dim, model.norm_eps) if model.qk_norm else None
        self.k_norm = RmsNorm(model.head_dim, model.norm_eps) if model.qk_norm else None
        self.core = Core()
        self.out = Linear(model.heads * model.head_dim, model.hidden_size, model.bias == "all")

    def forward(self, x_BTD: Tensor, cos_TC: Tensor | None, sin_TC: Tensor | None) -> Tensor:
        """Causal attention over x (B, T, D), (B, T, D) again; without rotary embedding if the tables are None."""
        q_BHTC, k_BKTC, v_BKTC = (self._heads(part(x_BTD)) for part in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q_BHTC, k_BKTC = self.q_norm(q_BHTC), self.k_norm(k_BKTC)
        if cos_TC is not None and sin_TC is not None:
            q_BHTC, k_BKTC = rotate(q_BHTC, cos_TC, sin_TC), rotate(k_BKTC, cos_TC, sin_TC)
        y_BHTC = self.core(q_BHTC, k_BKTC, v_BKTC)
        return self.out(y_BHTC.transpose(1, 2).flatten(2))

    def _heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.unflatten(2, (-1, self.head_dim)).transpose(1, 2)
