"""Dynamic loss scaling for float16, whose gradients underflow below 6e-8 (Micikevicius et al. 2018, arXiv:1710.03740,
section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainyard import scaled_steps
from trainyard.job import Job
from trainyard.train.step.precision import compute_dtype

Loss = Callable[..., Tensor]

START = 2.0**16
MINIMUM = 1.0
"""Smallest scale, as in Megatron-LM (`--min-loss-scale`). Gradients that overflow at it are a fault of the step."""
GROW_AFTER = 2000
"""Finite steps until the scale doubles."""


class LossScaling:
    """Multiplies the loss, and thus its gradients, by `factor` until the gradient norm is computed.

    If a gradient is not finite, the step is skipped and the scale halved. All ranks decide the same, since norms are
    global. On n ranks with different tokens, a rank's gradients are n times its share of the global mean; `factor` is
    the scale divided by n, so that float16 overflows and underflows at the same values under any layout.
    """

    def __init__(self, job: Job) -> None:
        """`scales_loss`: whether the job trains in float16; otherwise the scale stays 1. `finite_steps`: steps in
        succession with finite gradients; `token_ranks`: the number n of ranks with different tokens."""
        self.scales_loss = compute_dtype(job.recipe) == torch.float16
        self.scale = START if self.scales_loss else 1.0
        self.finite_steps = 0
        self.token_ranks = job.layout.token_ranks if self.scales_loss else 1

    @property
    def factor(self) -> float:
        """The factor of a rank's loss: the scale divided by the ranks with different tokens."""
        return self.scale / self.token_ranks

    def scale_loss(self, loss: Loss) -> Loss:
        """Wraps `loss` to multiply it by the factor at the time of the call."""
        return (lambda outputs, targets: loss(outputs, targets) * self.factor) if self.scales_loss else loss

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller scale may make gradients finite."""
        return self.scales_loss and self.scale > MINIMUM

    def accept_step(self, is_finite: bool) -> bool:
        """Whether to take the step, given whether its gradient norm is finite. Call once per step: it updates the
        scale."""
        if not self.scales_loss:
            return True
        scaled_steps.notify(scaled_steps.ScaledStep(self.scale, self.factor, is_skipped=not is_finite))
        self.finite_steps = self.finite_steps + 1 if is_finite else 0
        if not is_finite:
            self.scale = max(self.scale / 2, MINIMUM)
        elif self.finite_steps % GROW_AFTER == 0:
            self.scale *= 2
        return is_finite

    def state(self) -> Mapping[str, float]:
        """State for a checkpoint; empty if the loss is not scaled."""
        return {"scale": self.scale, "good": self.finite_steps} if self.scales_loss else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restores the state of a checkpoint; empty if it was saved in another precision."""
        if self.scales_loss and "scale" in state:
            self.scale, self.finite_steps = float(state["scale"]), int(state["good"])
