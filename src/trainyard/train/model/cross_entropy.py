"""Cross-entropy of logits in chunks of rows, so that float32 logits exist for one chunk at a time.

The logits stay in the compute dtype, and the backward pass writes their gradient over them. PyTorch's own function on
`logits.float()` keeps float32 copies of all logits, their softmax and its gradient.

Shapes: N rows (tokens), V classes of this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_VALUES = 2**24
"""Logits of a chunk: 64 MiB in float32, enough for an accelerator's kernels to run at full speed."""


def cross_entropy(
    logits_NV: Tensor, targets_N: Tensor, group: dist.ProcessGroup | None = None, first_class: int = 0
) -> Tensor:
    """The mean cross-entropy in nats over the N rows, a float32 scalar.

    `group`: the ranks that divide the classes, or None; this rank has the V classes from `first_class` on. The result
    is then the same on each, at the cost of three all-reduces of N values. The backward pass overwrites `logits_NV`,
    which must not be used afterwards; a second backward pass raises torch's error on a modified tensor.
    """
    return _ChunkedCrossEntropy.apply(logits_NV, targets_N, group, first_class)  # pyright: ignore[reportReturnType]


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The mean of log-sum-exp(logits) minus the target's logit."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, group: Any, first_class: int) -> Tensor:
        """Computes the loss by chunks of rows. `group`: the ranks that divide the classes, None if this rank has all;
        `first_class`: number of its first class. Saves the logits, and if the classes are divided the correction of
        this rank's softmax: the share of its classes in the sum of exponentials, per row."""
        log_sum_N = logits_NV.new_empty(len(logits_NV), dtype=torch.float32)  # of this rank's classes
        picked_N = torch.zeros_like(log_sum_N)  # logit of the target, if its class is on this rank
        rows_N, is_here_N = _local_targets(targets_N, first_class, logits_NV.shape[1])
        for rows in _chunks(logits_NV):
            chunk = logits_NV[rows]
            log_shares = torch.log_softmax(chunk, dim=1, dtype=torch.float32)
            first_logits = chunk[:, 0].float()
            log_sum_N[rows] = first_logits - log_shares[:, 0]
            picked = log_shares.gather(1, rows_N[rows].unsqueeze(1)).squeeze(1)
            picked_N[rows] = picked if group is None else (picked + log_sum_N[rows]) * is_here_N[rows]
        if group is None:
            ctx.save_for_backward(logits_NV, rows_N, is_here_N)
            return -picked_N.mean()
        largest_N = log_sum_N.clone()
        dist.all_reduce(largest_N, dist.ReduceOp.MAX, group=group)
        total_N = (log_sum_N - largest_N).exp()
        dist.all_reduce(total_N, group=group)
        dist.all_reduce(picked_N, group=group)
        all_log_sum_N = largest_N + total_N.log()
        ctx.save_for_backward(logits_NV, rows_N, is_here_N, (log_sum_N - all_log_sum_N).exp())
        return (all_log_sum_N - picked_N).mean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of the logits, (softmax - one at the target) / N, in their storage."""
        logits_NV, rows_N, is_here_N, *shares = ctx.saved_tensors
        scale = grads[0] / len(logits_NV)
        for rows in _chunks(logits_NV):
            gradient = torch.softmax(logits_NV[rows], dim=1, dtype=torch.float32)
            if shares:
                gradient.mul_(shares[0][rows].unsqueeze(1))
            gradient.scatter_add_(1, rows_N[rows].unsqueeze(1), -is_here_N[rows].unsqueeze(1))
            logits_NV[rows].copy_(gradient.mul_(scale))
        return logits_NV.detach(), None, None, None


def _local_targets(targets_N: Tensor, first_class: int, classes: int) -> tuple[Tensor, Tensor]:
    """(column of each row's target among this rank's `classes`, 0 if it is on another rank; 1.0 or 0.0: whether it is
    on this rank)."""
    columns_N = targets_N - first_class
    is_here_N = (columns_N >= 0) & (columns_N < classes)
    return columns_N.masked_fill(~is_here_N, 0), is_here_N.float()


def _chunks(logits_NV: Tensor) -> Iterator[slice]:
    """Slices of rows with at most `CHUNK_VALUES` logits each, but at least one row."""
    rows = max(1, CHUNK_VALUES // logits_NV.shape[1])
    return (slice(start, start + rows) for start in range(0, len(logits_NV), rows))
