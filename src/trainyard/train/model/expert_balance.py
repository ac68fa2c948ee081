"""Load balance of experts: counting tokens, and balancing with an auxiliary loss or a bias.

Work that must run once per micro-batch (counting, the auxiliary loss) runs in the backward pass, since activation
checkpointing runs the forward pass of a block twice.

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
"""Bias update per step (DeepSeek-V3, arXiv:2412.19437, section 4.2)."""


class Load:
    """Token counts of one layer's experts, and the loss that balances them.

    `peers`: the ranks that have other parts of the same sequences; None if no other rank has. `share`: the weight of a
    micro-batch in this rank's loss of a step.
    """

    def __init__(self, experts: int) -> None:
        """`experts`: number of experts E. `running`: (E,) int64, this rank's counts of the current step so far; None
        before its first micro-batch."""
        self.experts = experts
        self.share = 1.0
        self.peers: dist.ProcessGroup | None = None
        self.running: Tensor | None = None
        self.last: Tensor | None = None
        """(E,) int64: counts of the last step over the global batch."""

    def count_in_backward(self, x: Tensor, counts_E: Tensor) -> Tensor:
        """Returns `x` unchanged; its backward pass adds `counts_E` to the running counts, once per micro-batch."""
        return _CountInBackward.apply(x, counts_E, self._add)

    def _add(self, counts_E: Tensor) -> None:
        """Adds a micro-batch's tokens per expert to the counts of the current step."""
        self.running = counts_E if self.running is None else self.running + counts_E

    def loss(self, scores_NE: Tensor, counts_E: Tensor) -> Tensor:
        """The balance loss of Switch (arXiv:2101.03961, section 2.2) for any number of experts per token: a scalar,
        LOSS_WEIGHT if all experts are used equally. `scores_NE`: positive router scores of each token; `counts_E`:
        tokens sent to each expert.

        Computed over the full sequences of a micro-batch. If ranks have parts of the sequences, counts are summed over
        the parts and scores are local: the mean over these ranks is the loss of the full sequences, and so is its
        gradient.
        """
        if self.peers is not None:
            counts_E = counts_E.clone()
            dist.all_reduce(counts_E, group=self.peers)
        token_shares_E = counts_E / counts_E.sum()
        score_shares_E = (scores_NE / scores_NE.sum(dim=1, keepdim=True)).mean(dim=0)
        return LOSS_WEIGHT * self.experts * (token_shares_E * score_shares_E).sum()


def add_auxiliary_loss(x: Tensor, loss: Tensor, share: float) -> Tensor:
    """Returns `x`; its backward pass also backpropagates `share` times the scalar `loss`, as if added to the loss."""
    return _AddAuxiliaryLoss.apply(x, loss, share)


def end_step(loads: Sequence[Load], groups: Sequence[dist.ProcessGroup]) -> None:
    """Ends a step of all layers: sums the counts of the step over the process groups `groups` in turn, and stores the
    sums as `last`."""
    running = [load.running for load in loads if load.running is not None]
    if not running:
        return
    counts_LE = torch.stack(running)
    for group in groups:
        dist.all_reduce(counts_LE, group=group)
    for load, counts_E in zip(loads, counts_LE):
        load.last, load.running = counts_E, None


def update_bias(bias_E: Tensor, counts_E: Tensor) -> None:
    """Updates the selection bias (E,) in place: lowers that of experts with more tokens than the mean and raises that
    of the others (Wang et al. 2024, arXiv:2408.15664, algorithm 1). `counts_E`: tokens per expert of the step."""
    bias_E += BIAS_RATE * torch.sign(counts_E.sum() - len(counts_E) * counts_E)  # sign of E (mean - count), in integers


class _CountInBackward(torch.autograd.Function):
    """The identity; its backward pass calls `add` with `counts`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        ctx.save_for_backward(counts)
        ctx.add = add
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.add(ctx.saved_tensors[0])
        return grads[0], None, None


class _AddAuxiliaryLoss(torch.autograd.Function):
    """The identity; its backward pass gives `loss` the gradient `share`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], grads[0].new_full((), ctx.share), None
