"""Results of a training step and facts about the training. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Outcome(NamedTuple):
    """Result of one step, the same on every rank. `loss`: mean over the global batch (nats per token); `grad_norm`: the
    global norm before clipping."""

    loss: float
    grad_norm: float


class About(NamedTuple):
    """Facts about the training; see the fields of the same names in `run.local.rank_facts`."""

    text: str
    digests: Mapping[str, str]
    seeds: Mapping[str, int]
    parameters: int
    model_flops: int
    experts: Mapping[str, Sequence[int]] = {}


class Training(Protocol):
    """The training that a workload builds on each rank. Both methods are collective."""

    def __call__(self, step: int) -> Outcome: ...

    def about(self) -> About:
        """Facts about the training, including a digest of the current weights. Call at the end."""
        ...
