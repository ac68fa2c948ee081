"""What a step, and the training behind it, say of themselves. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Outcome(NamedTuple):
    """Of one step, the same on every rank: `loss` is the mean over the global batch (nats a token), `grad_norm`
    the global norm before clipping."""

    loss: float
    grad_norm: float


class About(NamedTuple):
    """The training behind a step: see `run.facts.Facts` for the fields of the same names."""

    text: str
    digests: Mapping[str, str]
    seeds: Mapping[str, int]
    parameters: int
    model_flops: int
    experts: Mapping[str, Sequence[int]] = {}


class Training(Protocol):
    """What a workload that trains builds in each rank. Both are collective: every rank calls, in the same order."""

    def __call__(self, step: int) -> Outcome: ...

    def about(self) -> About:
        """To be asked at the end: it digests the weights as they are then."""
        ...
