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
    """Facts about the training, as recorded in `run.local.rank_facts`."""

    text: str
    """Description of the training data."""
    digests: Mapping[str, str]
    """sha256 of `text`, `weights_initial` and `weights_final`; or why there is none, of `weights`."""
    seeds: Mapping[str, int]
    """Seed of `weights` and of `samples`."""
    parameters: int
    """Parameters of the whole model."""
    model_flops: int
    """FLOPs of the whole model per step, over all ranks, without recomputation."""
    experts: Mapping[str, Sequence[int]] = {}
    """Tokens of each expert in the last step over all ranks, by name of this rank's layers."""


class Training(Protocol):
    """The training that a workload builds on each rank. Both methods are collective."""

    def __call__(self, step: int) -> Outcome: ...

    def about(self) -> About:
        """Facts about the training, including a digest of the current weights. Call at the end."""
        ...
