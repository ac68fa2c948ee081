"""A decoder-only transformer: RMSNorm before each part, rotary positions, grouped-query causal attention, SwiGLU.

The head is not tied to the embedding. No biases, no dropout. Weights are float32; what they multiply has the
compute dtype, which the embedding's output is cast to once, and `Linear` casts its weight to match: the same
arithmetic alone, replicated and sharded (where FSDP has cast the weights already, the cast does nothing).

Shapes: B sequences, T positions, D width, F gated width, H query heads, K key/value heads, C head width, V vocabulary.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainyard.job import Model
from trainyard.train.span import span

EPS = 1e-5
ROPE_BASE = 10_000.0


class Linear(nn.Module):
    """y = x W^T, with W (out, in) cast to the dtype of x."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Embedding(nn.Module):
    """Rows of (V, D), in the dtype asked for."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, tokens_BT: Tensor, dtype: torch.dtype) -> Tensor:
        return F.embedding(tokens_BT, self.weight).to(dtype)


class Norm(nn.Module):
    """Root-mean-square normalisation over D (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight.to(x_BTD.dtype), EPS)


class Attention(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        self.grouped = model.heads != model.kv_heads
        self.q = Linear(model.width, model.heads * model.head_dim)
        self.k = Linear(model.width, model.kv_heads * model.head_dim)
        self.v = Linear(model.width, model.kv_heads * model.head_dim)
        self.out = Linear(model.heads * model.head_dim, model.width)

    def forward(self, x_BTD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        q_BHTC = rotate(self._heads(self.q(x_BTD)), rope)
        k_BKTC = rotate(self._heads(self.k(x_BTD)), rope)
        v_BKTC = self._heads(self.v(x_BTD))
        grouped = self.grouped
        if grouped and x_BTD.is_cuda and x_BTD.dtype == torch.float32:
            # The one fused kernel for float32 there does not know grouped heads.
            k_BKTC, v_BKTC = (x.repeat_interleave(q_BHTC.shape[1] // x.shape[1], dim=1) for x in (k_BKTC, v_BKTC))
            grouped = False
        y_BHTC = F.scaled_dot_product_attention(q_BHTC, k_BKTC, v_BKTC, is_causal=True, enable_gqa=grouped)
        return self.out(y_BHTC.transpose(1, 2).flatten(2))

    def _heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.unflatten(2, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = Linear(model.width, model.ffn)
        self.up = Linear(model.width, model.ffn)
        self.down = Linear(model.ffn, model.width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nn.Module):
    def __init__(self, model: Model, name: str, remat: bool, compiled: bool) -> None:
        super().__init__()
        self.name = name
        self.remat = remat
        # Not the module itself: its hooks (FSDP's) stay outside what is compiled.
        self.call = torch.compile(self.run) if compiled else self.run
        self.attention_norm = Norm(model.width)
        self.attention = Attention(model)
        self.mlp_norm = Norm(model.width)
        self.mlp = Mlp(model)

    def forward(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        with span(self.name):
            return self.call(x_BTD, cos_TC, sin_TC)

    def run(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        """The block without the range around it; its parts again in the backward pass, where `remat` says so."""
        if self.remat:
            return checkpoint(self.parts, x_BTD, cos_TC, sin_TC, use_reentrant=False, preserve_rng_state=False)
        return self.parts(x_BTD, cos_TC, sin_TC)

    def parts(self, x_BTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        with span(self.name, ".attention"):
            x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), (cos_TC, sin_TC))
        with span(self.name, ".mlp"):
            return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class Decoder(nn.Module):
    """Tokens (B, T) and targets (B, T) to the mean cross-entropy, in nats a token.

    `remat`: blocks keep only their input and are computed again backward. `compiled`: each block by torch.compile.
    """

    def __init__(self, model: Model, dtype: torch.dtype, remat: bool = False, compiled: bool = False) -> None:
        super().__init__()
        self.dtype = dtype
        self.head_dim = model.head_dim
        self.embed = Embedding(model.vocab, model.width)
        self.layers = nn.ModuleList(Block(model, f"layers.{i}", remat, compiled) for i in range(model.layers))
        self.norm = Norm(model.width)
        self.head = Linear(model.width, model.vocab)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        with span("embed"):
            x_BTD = self.embed(tokens_BT, self.dtype)
        cos_TC, sin_TC = rope_table(tokens_BT.shape[1], self.head_dim, tokens_BT.device)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TC, sin_TC)
        with span("norm"):
            x_BTD = self.norm(x_BTD)
        with span("head"):
            logits_BTV = self.head(x_BTD)
        with span("loss"):
            return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


@cache
def rope_table(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (T, C) float32, both halves of C alike (Su et al. 2021, arXiv:2104.09864)."""
    rate = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), rate).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x_BHTC: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turns channel c with channel c + C/2 by its position's angle, in float32."""
    cos_TC, sin_TC = rope
    x = x_BHTC.float()
    left, right = x.chunk(2, dim=-1)
    return (x * cos_TC + torch.cat((-right, left), dim=-1) * sin_TC).to(x_BHTC.dtype)
