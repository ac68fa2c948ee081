"""Attention that also returns the log-sum-exp of each row of scores, which `scaled_dot_product_attention` does not: by
torch's fused kernels if they support the operands, else by plain products.

Shapes: B sequences, S queries, T keys, H query heads, K key/value heads, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

Grads = tuple[Tensor, Tensor, Tensor]


class Kernel(NamedTuple):
    """A kernel for H query and H key/value heads: `forward(q, k, v, causal)` and
    `backward(d_out, q, k, v, out, lse, causal)`."""

    forward: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], Grads]


def attend(q_BHSC: Tensor, k_BKTC: Tensor, v_BKTC: Tensor, causal: bool, kernel: str = "") -> tuple[Tensor, Tensor]:
    """The output (B, H, S, C) and the log-sum-exp (B, H, S) float32. `causal` needs S = T. `kernel`: a key of
    `KERNELS`, by default the fastest that supports the operands."""
    k, v = _repeat_kv(q_BHSC, k_BKTC), _repeat_kv(q_BHSC, v_BKTC)
    return KERNELS[kernel or fastest_kernel(q_BHSC)].forward(q_BHSC, k, v, causal)


def attend_backward(
    d_out: Tensor,
    q_BHSC: Tensor,
    k_BKTC: Tensor,
    v_BKTC: Tensor,
    out: Tensor,
    lse_BHS: Tensor,
    causal: bool,
    kernel: str = "",
) -> Grads:
    """Gradients of q, k and v, with their shapes. `d_out`: gradient of the output. `out`, `lse_BHS`: output and
    log-sum-exp over all keys of a query, of which the given keys may be a part. `causal`, `kernel`: as in `attend`."""
    k, v = _repeat_kv(q_BHSC, k_BKTC), _repeat_kv(q_BHSC, v_BKTC)
    backward = KERNELS[kernel or fastest_kernel(q_BHSC)].backward
    d_q, d_k, d_v = backward(d_out, q_BHSC, k, v, out, lse_BHS, causal)
    kv_heads = k_BKTC.shape[1]
    return d_q, d_k.unflatten(1, (kv_heads, -1)).sum(2), d_v.unflatten(1, (kv_heads, -1)).sum(2)


def fastest_kernel(q: Tensor) -> str:
    """The key in `KERNELS` of the fastest kernel that supports `q`."""
    if q.device.type == "cpu":
        return "cpu"
    return "flash" if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) else "plain"


def _repeat_kv(q_BHSC: Tensor, x_BKTC: Tensor) -> Tensor:
    """Repeats key/value heads for their query heads: (B, H, T, C)."""
    return x_BKTC.repeat_interleave(q_BHSC.shape[1] // x_BKTC.shape[1], dim=1)


def _cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)


def _cpu_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool) -> Grads:
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return backward(d_out, q, k, v, out, lse, 0.0, causal)


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[:2]


def _flash_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool) -> Grads:
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    rng_state = torch.empty(0, dtype=torch.int64, device=q.device)  # unused without dropout
    lengths = (None, None, q.shape[2], k.shape[2])
    return backward(d_out, q, k, v, out, lse.contiguous(), *lengths, 0.0, causal, rng_state, rng_state)


def _plain(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, causal)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def _plain_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool) -> Grads:
    """Gradients of q, k and v (B, H, T, C) of an attention with output `out` and row-wise log-sum-exp `lse` (B, H, T),
    in plain torch operations."""
    weights = (_scores(q, k, causal) - lse[..., None]).exp()  # softmax P; dS = P (dP - sum(dO O)), arXiv:2205.14135
    d_v = weights.to(d_out.dtype).transpose(-1, -2) @ d_out
    d_weights = (d_out @ v.transpose(-1, -2)).float() - (d_out.float() * out.float()).sum(-1, keepdim=True)
    d_scores = (weights * d_weights * q.shape[-1] ** -0.5).to(q.dtype)
    return d_scores @ k, d_scores.transpose(-1, -2) @ q, d_v


def _scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Scaled dot products (B, H, T, T) in float32; -inf for later keys if `causal`."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    if not causal:
        return scores
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, float("-inf"))


KERNELS: Mapping[str, Kernel] = {
    "cpu": Kernel(_cpu, _cpu_backward),
    "flash": Kernel(_flash, _flash_backward),
    "plain": Kernel(_plain, _plain_backward),
}
