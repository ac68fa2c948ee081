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


Curve = Literal["loss", "gradient norm"]


class Spike(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps of a curve that are far above those before them. `value`: the largest; `ratio`: to the median
    of the values before the spike; `score`: the rise in robust standard deviations of a step's change, see
    find_spikes.py."""

    curve: Curve
    step: int
    last_step: int
    value: float
    ratio: float
    score: float


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    """A step. `loss`: the last scalar before the first backward pass, not scaled, None if there is none or it is not
    finite. `gradient_norm`: over the gradients that the optimizer read, before clipping only if it clips in its own
    step; None if no record has them. `batch`: hashes of the batch's tensors. `repeats`: an earlier step with the same
    batch. `skipped`: the update was not applied. `loss_scale`: None if the loss is not scaled."""

    step: int
    loss: float | None
    gradient_norm: float | None
    batch: tuple[str, ...]
    repeats: int | None = None
    skipped: bool = False
    loss_scale: float | None = None


ScaleTrend = Literal["steady", "fell once", "fell repeatedly"]
"""`fell once`: to a scale at which steps were taken, at the start or later. `fell repeatedly`: twice below all scales
at which steps were taken, in the last two steps or more, or below 1."""


class SkippedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that the scaler of the loss skipped. `scale`: of its loss. `overflow`: its first tensor that is not
    finite, apart from masks; None if no record has it. `is_of_scale`: a lower scale may make it finite, since it is in
    the backward pass or the scaled loss."""

    step: int
    scale: float
    overflow: TriagedTensor | None
    is_of_scale: bool


class LossScaleHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The scale of the loss over the recorded steps. `skipped`: in order."""

    trend: ScaleTrend
    skipped: tuple[SkippedStep, ...]

    @property
    def handled_steps(self) -> frozenset[int]:
        """The skipped steps whose overflow is normal; none if the scale fell repeatedly."""
        if self.trend == "fell repeatedly":
            return frozenset()
        return frozenset(step.step for step in self.skipped if step.is_of_scale)


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
    """Two runs of the same command, bit by bit. `compared`, `identical`: numbers of tensors, without the states of
    random-number generators. `random_state_step`, `data_step`: the first step that begins with another random state, or
    has another batch; None if none does. `unmatched`: tensors of one run only."""

    compared: int
    identical: int
    unmatched: int
    operations: tuple[NotReproducible, ...]
    random_state_step: int | None = None
    data_step: int | None = None


class Triage(msgspec.Struct, frozen=True, kw_only=True):
    """The diagnosis of a record or a stored run. `steps`: in order. `spikes`: of the loss and the gradient norm, in
    order. `nonfinite_loss_step`: the first step whose loss is not finite. `gradients`: of modules, the fastest growing
    first. `determinism`: None without a second run. `is_run`: whether it is a stored run, which has losses but no
    tensors. `replay`: the command that records the steps around the first fault of a stored run; empty if it has none
    or its job is a script. `is_replayed`: these steps of a stored run were recorded: `spikes` and `nonfinite_loss_step`
    are of the run, everything else is of the records. `loss_scale`:
    None if the loss is not scaled; `nonfinite` is outside of the skipped steps whose overflow is normal."""

    schema: Literal["trainyard/numerics-triage/1"] = "trainyard/numerics-triage/1"
    folder: str
    command: tuple[str, ...]
    device: str
    steps: tuple[StepTotals, ...]
    nonfinite: NonFiniteOrigin | None
    gradients: tuple[GradientGrowth, ...]
    determinism: Determinism | None
    spikes: tuple[Spike, ...] = ()
    nonfinite_loss_step: int | None = None
    is_run: bool = False
    replay: tuple[str, ...] = ()
    is_replayed: bool = False
    loss_scale: LossScaleHistory | None = None

    @property
    def is_finite_in_replay(self) -> bool:
        """Whether a loss of the run that was not finite is finite in the replay."""
        return self.is_replayed and self.nonfinite_loss_step is not None and self.nonfinite is None

    @property
    def exit_code(self) -> int:
        """0 if nothing is wrong, 1 if values are not finite, a curve has a spike, the scale of the loss fell repeatedly
        or the runs differ."""
        differs = self.determinism is not None and self.determinism.identical < self.determinism.compared
        is_finite = self.nonfinite is None and self.nonfinite_loss_step is None
        diverges = self.loss_scale is not None and self.loss_scale.trend == "fell repeatedly"
        return int(differs or not is_finite or diverges or bool(self.spikes))
