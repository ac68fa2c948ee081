"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values come from a narrow latent.

The rotary embedding uses separate channels (decoupled RoPE): each query head has some, and all heads share one key.
Shapes: B sequences, T positions, D width, H heads, C channels of a head without rotary embedding, R channels with, L
channels of the latent, V channels of a head's values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainyard.model import Model
from trainyard.train.model.attention import Core
from trainyard.train.model.layers import Linear, RmsNorm
from trainyard.train.model.rope import rotate


class LatentAttention(nn.Module):
    """Latent attention over the heads whose columns `q` (or `q_up`) and `kv_up` have. Latents are normalized before
    the up-projection."""

    def __init__(self, model: Model) -> None:
        """Projections of x to the queries (through a latent, if `q_lora_rank`), to the latent of keys and values with
        the shared rotary key, and from that latent to each head's keys and values."""
        super().__init__()
        self.widths = (model.head_dim, model.qk_rope_head_dim)  # C and R
        self.v_head_dim = model.v_head_dim
        self.kv_lora_rank = model.kv_lora_rank
        queries = model.heads * sum(self.widths)  # channels of all heads' queries
        if model.q_lora_rank:
            self.q_down = Linear(model.hidden_size, model.q_lora_rank)
            self.q_norm = RmsNorm(model.q_lora_rank, model.norm_eps)
            self.q_up = Linear(model.q_lora_rank, queries)
        else:
            self.q = Linear(model.hidden_size, queries)
        self.kv_down = Linear(model.hidden_size, model.kv_lora_rank + model.qk_rope_head_dim)
        self.kv_norm = RmsNorm(model.kv_lora_rank, model.norm_eps)
        self.kv_up = Linear(model.kv_lora_rank, model.heads * (model.head_dim + model.v_head_dim))
        self.core = Core()
        self.out = Linear(model.heads * model.v_head_dim, model.hidden_size)

    def forward(self, x_BTD: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
        """Attention over x (B, T, D): each head's query and key have C channels without and R with rotation. Returns
        (B, T, D)."""
        q_BTX = self.q_up(self.q_norm(self.q_down(x_BTD))) if hasattr(self, "q_up") else self.q(x_BTD)
        q_BHTC, q_BHTR = _heads(q_BTX, *self.widths)
        latent_BTL, key_BTR = self.kv_down(x_BTD).split((self.kv_lora_rank, self.widths[1]), dim=2)
        k_BHTC, v_BHTV = _heads(self.kv_up(self.kv_norm(latent_BTL)), self.widths[0], self.v_head_dim)
        k_BHTR = rotate(key_BTR.unsqueeze(1), cos_TR, sin_TR).expand(-1, k_BHTC.shape[1], -1, -1)
        q = torch.cat((q_BHTC, rotate(q_BHTR, cos_TR, sin_TR)), dim=3)
        y_BHTV = self.core(q, torch.cat((k_BHTC, k_BHTR), dim=3), v_BHTV)
        return self.out(y_BHTV.transpose(1, 2).flatten(2))


def _heads(x_BTX: Tensor, first_width: int, second_width: int) -> tuple[Tensor, Tensor]:
    """Splits each head's channels into two parts: x (B, T, H * (first + second)) to (B, H, T, first) and (B, H, T,
    second)."""
    first_part, second_part = (
        x_BTX.unflatten(2, (-1, first_width + second_width)).transpose(1, 2).split((first_width, second_width), dim=3)
    )
    return first_part, second_part
