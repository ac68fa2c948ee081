"""Results of a training step and facts about the training. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from trainyard.recipe import StepAction


class StepResult(Protocol):
    """Result of one step, the same on every rank. `loss`: mean over the global batch (nats per token); `grad_norm`: the
    global norm before clipping. On a device, reading them may wait for the step's end."""

    @property
    def loss(self) -> float: ...

    @property
    def grad_norm(self) -> float: ...


class Outcome(NamedTuple):
    """A `StepResult` that is known."""

    loss: float
    grad_norm: float


class StepFault(NamedTuple):
    """Why a step's update was not applied, the same on every rank. `kind`: as in words.FAULTS; `action`: what the
    recipe demands; `message`: the evidence, a clause."""

    kind: Literal["non_finite", "loss_spike"]
    action: StepAction
    message: str


class NonFiniteTensor(NamedTuple):
    """A tensor with values that are NaN or infinite. `order`: sorts the tensors of a rank and of all ranks by the time
    at which a step computes them; `label`: the tensor, such as `the output of layers.1.mlp`; `count`: number of such
    values, of `size` on this rank."""

    order: tuple[int, ...]
    rank: int
    label: str
    count: int
    size: int

    def __str__(self) -> str:
        return f"{self.label} on rank {self.rank} ({self.count:,} of {self.size:,} values)"


class ExpertCounts(Protocol):
    """Tokens per expert of a step over all ranks; calling it may wait for the step's end."""

    def __call__(self) -> Mapping[str, tuple[int, ...]]:
        """Layer name -> tokens of each expert."""
        ...


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

    def __call__(self, step: int) -> StepResult: ...

    def about(self) -> About:
        """Facts about the training, including a digest of the current weights. Call at the end."""
        ...


@runtime_checkable
class Guarded(Training, Protocol):
    """A `Training` that does not update its state at a faulty step."""

    fault: StepFault | None
    """The fault of the last step; None if its update was applied."""

    def find_non_finite(self, step: int) -> NonFiniteTensor | None:
        """The first non-finite tensor of the last step, `step`, which is computed again; the same on every rank, None
        if none is found. Collective."""
        ...


@runtime_checkable
class CountsExperts(Training, Protocol):
    """A `Training` of a model with experts, whose loads each step counts over the global batch."""

    @property
    def expert_count(self) -> int:
        """Experts of all layers that this rank reports: those of its pipeline stages, 0 if another rank with the same
        stages does."""
        ...

    def expert_counts(self) -> ExpertCounts | None:
        """Launches the copy of the last step's tokens per expert to the host; None before the first step."""
        ...
