"""Ring attention (Liu et al. 2023, arXiv:2310.01889): keys and values pass from rank to rank, and each rank merges the
partial outputs by their log-sum-exp. Causal, with two chunks per rank (see context_parallel.py), on any device.

The backward pass runs the ring again. With the log-sum-exp of the full row, the gradients of each part are exact (Dao
2023, arXiv:2307.08691, section 3.1); the gradients of keys and values travel one step after them.

Shapes: B sequences, t positions of this rank, H query heads, K key/value heads, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainyard.train.parallel.fused_attention import attend, attend_backward


def ring(q_BHtC: Tensor, k_BKtC: Tensor, v_BKtC: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Causal attention of this rank's queries over the positions of all ranks, (B, H, t, C)."""
    return _Ring.apply(q_BHtC, k_BKtC, v_BKtC, group)  # pyright: ignore[reportReturnType]


class _Ring(torch.autograd.Function):
    """Ring attention of this rank's positions: q (B, H, t, C); k and v (B, K, t, C)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Attention over keys and values that travel once around the ring: each step adds one rank's, rescaled by the
        log-sum-exp of the scores so far. Returns (B, H, t, C)."""
        q, kv = q.contiguous(), torch.stack((k, v))
        out = torch.zeros_like(q, dtype=torch.float32)
        lse = torch.full(q.shape[:3], float("-inf"), device=q.device)
        for step in range(group.size()):
            wait_for_next = _send_to_next(kv, group) if step < group.size() - 1 else None
            rows, cols, causal = _interacting_slices(q.shape[2], group.rank(), (group.rank() - step) % group.size())
            chunk_k, chunk_v = kv[:, :, :, cols]
            partial_out, partial_lse = attend(q[:, :, rows], chunk_k, chunk_v, causal)
            merged_lse = torch.logaddexp(lse[:, :, rows], partial_lse)
            old_weight, new_weight = (lse[:, :, rows] - merged_lse).exp(), (partial_lse - merged_lse).exp()
            out[:, :, rows] = out[:, :, rows] * old_weight[..., None] + partial_out * new_weight[..., None]
            lse[:, :, rows] = merged_lse
            kv = wait_for_next() if wait_for_next is not None else kv
        out = out.to(q.dtype)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of q, k and v. Keys and values travel around the ring again, and after them their gradients, in the
        compute dtype: each rank adds its part in float32 and sends the sum while it computes its next part."""
        q, k, v, out, lse = ctx.saved_tensors
        group, d_out, kv = ctx.group, grads[0].contiguous(), torch.stack((k, v))
        d_q = torch.zeros_like(q, dtype=torch.float32)
        wait_for_gradient: Callable[[], Tensor] = partial(torch.zeros_like, kv)  # the first sum
        for step in range(group.size()):
            wait_for_next = _send_to_next(kv, group) if step < group.size() - 1 else None
            rows, cols, causal = _interacting_slices(q.shape[2], group.rank(), (group.rank() - step) % group.size())
            part_out, part_lse = out[:, :, rows], lse[:, :, rows]
            chunk_k, chunk_v = kv[:, :, :, cols]
            part_q, part_k, part_v = attend_backward(
                d_out[:, :, rows], q[:, :, rows], chunk_k, chunk_v, part_out, part_lse, causal
            )
            d_q[:, :, rows] += part_q
            d_kv = wait_for_gradient()
            d_kv[:, :, :, cols] = (d_kv[:, :, :, cols].float() + torch.stack((part_k, part_v))).to(kv.dtype)
            # Also after the last part, so that the gradients return to their owner.
            wait_for_gradient = _send_to_next(d_kv, group)
            kv = wait_for_next() if wait_for_next is not None else kv
        d_k, d_v = wait_for_gradient()
        return d_q.to(q.dtype), d_k, d_v, None


def _interacting_slices(position_count: int, rank: int, key_owner: int) -> tuple[slice, slice, bool]:
    """The slices of this rank's `position_count` queries and of `key_owner`'s keys that interact, and whether they need
    a causal mask. A rank has an early and a late chunk of the sequence; the lower the rank, the earlier the first and
    the later the second."""
    all_positions, half_length = slice(position_count), position_count // 2
    if key_owner == rank:
        return all_positions, all_positions, True
    if key_owner < rank:
        return all_positions, slice(half_length), False
    return slice(half_length, position_count), all_positions, False


def _send_to_next(x: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """Sends `x` to the next rank. Returns a function that waits for the tensor from the previous rank."""
    ranks, rank = group.size(), group.rank()
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    next_rank, previous_rank = (dist.get_global_rank(group, (rank + offset) % ranks) for offset in (1, -1))
    contiguous = x.contiguous()
    transfers = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, contiguous, next_rank, group), dist.P2POp(dist.irecv, received, previous_rank, group)]
    )

    def wait() -> Tensor:
        """Waits for both transfers, and returns the received tensor."""
        for transfer in transfers:
            transfer.wait()
        return received

    return wait
