"""How evenly experts are used: counted, recorded, and kept even by a loss or by a bias.

What happens once a micro-batch (counting, a loss beside the reported one) happens in its backward pass: a block that is
computed again runs forward twice.

Shapes: N tokens, E experts, A experts a token uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

LOSS_WEIGHT = 0.01
"""Fedus et al. 2021 (arXiv:2101.03961), section 2.2."""
BIAS_RATE = 0.001
"""A step of the bias (DeepSeek-V3, arXiv:2412.19437, section 4.2)."""


class Load:
    """Tokens that one layer's experts got. `peers`: the ranks that have other parts of the same sequences.

    `share`: what part of the step's loss on this rank a micro-batch is.
    """

    def __init__(self, experts: int) -> None:
        self.experts = experts
        self.share = 1.0
        self.peers: dist.ProcessGroup | None = None
        self.running: Tensor | None = None
        self.last: Tensor | None = None
        """(E,) int64: of the last step, over the global batch."""

    def counted(self, x: Tensor, counts_E: Tensor) -> Tensor:
        """`x`; its backward pass adds the counts."""
        return _Backward.apply(x, counts_E, self._add)

    def _add(self, counts_E: Tensor) -> None:
        self.running = counts_E if self.running is None else self.running + counts_E

    def loss(self, scores_NE: Tensor, counts_E: Tensor) -> Tensor:
        """Switch's loss (section 2.2) for any number of experts a token: LOSS_WEIGHT where all are used alike.

        Of the tokens of a micro-batch, whole sequences: where a rank has parts of them, the counts are of all parts and
        the scores of its own, so that the mean over those ranks is the loss of the whole, and its gradient too.
        """
        if self.peers is not None:
            counts_E = counts_E.clone()
            dist.all_reduce(counts_E, group=self.peers)
        chosen_E = counts_E / counts_E.sum()
        likely_E = (scores_NE / scores_NE.sum(dim=1, keepdim=True)).mean(dim=0)
        return LOSS_WEIGHT * self.experts * (chosen_E * likely_E).sum()


def also_loss(x: Tensor, loss: Tensor, share: float) -> Tensor:
    """`x`; its backward pass goes through `share` of the scalar `loss` as well, as if it had been added to the loss."""
    return _Also.apply(x, loss, share)


def settle(loads: Sequence[Load], groups: Sequence[dist.ProcessGroup]) -> None:
    """The counts of a step that ended, summed over the ranks of all `groups`, become the last ones."""
    running = [load.running for load in loads if load.running is not None]
    if not running:
        return
    counts_LE = torch.stack(running)
    for group in groups:
        dist.all_reduce(counts_LE, group=group)
    for load, counts_E in zip(loads, counts_LE):
        load.last, load.running = counts_E, None


def follow(bias_E: Tensor, counts_E: Tensor) -> None:
    """The bias of an expert that got more than the mean falls, of one that got less rises (Wang et al. 2024,
    arXiv:2408.15664, algorithm 1)."""
    bias_E += BIAS_RATE * torch.sign(counts_E.sum() - len(counts_E) * counts_E)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        ctx.save_for_backward(counts)
        ctx.add = add
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.add(ctx.saved_tensors[0])
        return grads[0], None, None


class _Also(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], grads[0].new_full((), ctx.share), None
