"""Loss scaling: float16's gradients would vanish below 6e-8, so the loss they come from is multiplied
(Micikevicius et al. 2018, arXiv:1710.03740, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainyard.job import Job
from trainyard.train.step.precision import computes

Loss = Callable[..., Tensor]

START = 2.0**16
GROW_AFTER = 2000
"""Good steps until the scale doubles."""


class LossScaling:
    """The loss and its gradients are multiplied by `factor` until the gradients' norm is known.

    Where any gradient is not finite the step is skipped and the scale halved. Norms are global, so all ranks judge
    alike. The gradients of each of n ranks with samples or tokens of its own are n times their share of the mean over
    all; `factor` is the scale without that, so that what float16 holds, and what it loses, is the same on any layout.
    """

    def __init__(self, job: Job) -> None:
        self.moves = computes(job.recipe) == torch.float16
        self.scale = START if self.moves else 1.0
        self.good = 0
        self.shares = job.layout.token_ranks if self.moves else 1

    @property
    def factor(self) -> float:
        return self.scale / self.shares

    def over(self, loss: Loss) -> Loss:
        """`loss`, multiplied by the factor of the time it is called at."""
        return (lambda outputs, targets: loss(outputs, targets) * self.factor) if self.moves else loss

    def passes(self, norm: Tensor) -> bool:
        """Whether the step may be taken, by the norm of its gradients. To be asked once a step: the scale moves."""
        if not self.moves:
            return True
        finite = bool(norm.isfinite())
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.good % GROW_AFTER == 0:
            self.scale *= 2
        return finite

    def state(self) -> Mapping[str, float]:
        """What a checkpoint keeps; nothing where the loss is never scaled."""
        return {"scale": self.scale, "good": self.good} if self.moves else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """From a checkpoint; one of another format says nothing of a scale."""
        if self.moves and state:
            self.scale, self.good = float(state["scale"]), int(state["good"])
