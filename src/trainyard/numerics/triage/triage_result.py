"""The diagnosis of a recorded training, as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.numerics.tensor_record import Phase, Role


class TriagedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded tensor. `rank`: -1 for one of all ranks. `location`: file and line of the user's code, or empty.
    `norm`, `maximum`: of its finite elements."""

    step: int
    phase: Phase
    module: str
    operation: str
    role: Role
    name: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    location: str
    norm: float
    maximum: float
    nan: int = 0
    positive_infinities: int = 0
    negative_infinities: int = 0


class NonFiniteOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The first tensor that is not finite, apart from the negative infinities of masks. `inputs`: the recorded tensors
    from which it was computed. `affected`: number of later tensors that are not finite; `first_loss`, `first_gradient`,
    `first_weight`: the first of them in each role, None if none is."""

    tensor: TriagedTensor
    inputs: tuple[TriagedTensor, ...]
    affected: int
    first_loss: TriagedTensor | None = None
    first_gradient: TriagedTensor | None = None
    first_weight: TriagedTensor | None = None


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A step. `loss`: the last scalar before the first backward pass, None if there is none or it is not finite.
    `gradient_norm`: over the gradients that the optimizer read, before clipping only if it clips in its own step.
    `batch`: hashes of the batch's tensors. `repeats`: an earlier step with the same batch."""

    step: int
    loss: float | None
    gradient_norm: float
    batch: tuple[str, ...]
    repeats: int | None = None


class GradientGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """The gradient of a module's parameters: L2 norms by step, and the largest ratio of one to the median of those
    before it, with its step; 0 with fewer than three steps."""

    module: str
    norms: tuple[float, ...]
    growth: float
    step: int


class NotReproducible(msgspec.Struct, frozen=True, kw_only=True):
    """An operation whose result differs between two runs although all recorded inputs are equal bit by bit. `count`: of
    its calls; `tensor`: the first of them. `reason`, `switch`, `source`: see data/nonreproducible_operations.toml."""

    operation: str
    count: int
    tensor: TriagedTensor
    reason: str
    switch: str
    source: str


class Determinism(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of the same command, bit by bit. `compared`, `identical`: numbers of tensors. `random_state_step`,
    `data_step`: the first step that begins with another random state, or has another batch; None if none does.
    `unmatched`: tensors of one run only."""

    compared: int
    identical: int
    unmatched: int
    operations: tuple[NotReproducible, ...]
    random_state_step: int | None = None
    data_step: int | None = None


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of a record. `steps`: in order. `gradients`: of modules, the fastest growing first. `determinism`:
    None without a second run."""

    schema: Literal["trainyard/numerics-triage/1"] = "trainyard/numerics-triage/1"
    folder: str
    command: tuple[str, ...]
    device: str
    steps: tuple[StepTotals, ...]
    nonfinite: NonFiniteOrigin | None
    gradients: tuple[GradientGrowth, ...]
    determinism: Determinism | None

    @property
    def exit_code(self) -> int:
        """0 if nothing is wrong, 1 if values are not finite or the runs differ."""
        if self.nonfinite is not None or (
            self.determinism is not None and self.determinism.identical < self.determinism.compared
        ):
            return 1
        return 0
