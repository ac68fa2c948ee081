"""The result of a comparison of two records, as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.numerics.compare.comparison_rule import ComparisonRule
from trainyard.numerics.compare.match_modules import RenamedModule
from trainyard.numerics.tensor_record import Phase, Role

Verdict = Literal["same", "different", "cannot tell"]
Status = Literal["identical", "within rounding", "compensated", "different", "undetectable"]
"""`compensated`: differs within a module whose output does not. `undetectable`: A's own rounding is as large as the
values, or the records lack what the check needs."""
Kind = Literal[
    "value",
    "shape",
    "dtype",
    "non-finite",
    "data",
    "random values",
    "missing gradient",
    "extra gradient",
    "not updated",
    "replicas differ",
    "not deterministic",
]
"""`random values`: the sides draw other random numbers, which says nothing about what follows from them."""


class TensorPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of both records. `module` and the numbers are those of A. `rank`: -1 for a tensor of all ranks.
    `location_a`, `location_b`: file and line of the user's code; empty if unknown."""

    step: int
    phase: Phase
    module: str
    operation: str
    role: Role
    name: str
    call: int
    output: int
    rank: int
    shape: tuple[int, ...]
    dtype_a: str
    dtype_b: str
    location_a: str
    location_b: str


class OneSidedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that only one side computes. `location`: file and line of the user's code; empty if unknown."""

    side: Literal["A", "B"]
    operation: str
    module: str
    location: str

    @property
    def description(self) -> str:
        """`aten.mul of layers.3 (model.py:12), which only A computes`."""
        module = f" of {self.module}" if self.module else ""
        location = f" ({self.location})" if self.location else ""
        return f"{self.operation}{module}{location}, which only {self.side} computes"


class ReadWeight(msgspec.Struct, frozen=True, kw_only=True):
    """A weight of the module of a divergence after the step before, which differs by less than its limit."""

    module: str
    name: str
    step: int
    error: float | None
    limit: float | None


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of B that rounding does not explain. `error`: of B, relative to the float64 reference of A; None if it
    is not finite or the check is exact. `noise`: the largest error of A and its replicas; `limit`: the error from which
    B differs; `rho`: error / noise. `last_correct`: the last of its inputs that B computed within rounding, or else the
    last tensor before it; None if there is none. `detail`: numbers of this kind of divergence. `causes`: operations
    from which a side computed this tensor and that the other side lacks, the nearest of each side. `only_a`, `only_b`:
    operations of the module that one side lacks, with their locations. `read_weight`: that with the largest error
    relative to its limit; None in the first recorded step. `count`: the tensors that diverge in the same way, this one
    included."""

    kind: Kind
    tensor: TensorPoint
    error: float | None = None
    noise: float | None = None
    limit: float | None = None
    rho: float | None = None
    last_correct: TensorPoint | None = None
    detail: str = ""
    causes: tuple[OneSidedOperation, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    read_weight: ReadWeight | None = None
    count: int = 1


class ModuleErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the tensors of a module. `rho`: the largest; `of_limit`: the largest error as a fraction of its limit;
    `worst`: the operation or role of that tensor; `noise`: of it. None if no tensor was judged by value."""

    status: Status
    rho: float | None = None
    of_limit: float | None = None
    noise: float | None = None
    worst: str = ""


class ModuleComparison(ModuleErrors, frozen=True, kw_only=True):
    """The tensors of a module over all steps; `module` is empty outside of modules. `first_step`, `first_phase`: of its
    first different tensor; None without one. `near_fault`: its tensors in the step and phase of the first divergence;
    None if it has none there, or if nothing diverges."""

    module: str
    tensors: int
    different: int
    undetectable: int
    first_step: int | None = None
    first_phase: Phase | None = None
    near_fault: ModuleErrors | None = None
    is_first_fault: bool = False


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a phase of a step, as `ModuleErrors`. `noise`, `error`: medians over the tensors judged by
    value, None without any."""

    step: int
    phase: Phase
    tensors: int
    different: int
    undetectable: int
    rho: float | None = None
    of_limit: float | None = None
    noise: float | None = None
    error: float | None = None


class TensorComparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor of both records as it was judged. The module and the numbers are those of A; `rank`: -1 for a tensor of
    all ranks. `kind`: of a difference that is not of the values. `error`, `noise`, `limit`: with four digits, None if
    the value was not judged or they are not finite. `reason`: why it is undetectable. `location`: file and line of the
    user's code."""

    step: int
    phase: Phase
    module: str = ""
    operation: str = ""
    role: Role
    name: str = ""
    call: int = 0
    output: int = 0
    rank: int = -1
    status: Status
    kind: Kind | None = None
    error: float | None = None
    noise: float | None = None
    limit: float | None = None
    reason: str = ""
    location: str = ""


class PhaseErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a phase of all steps. `counts`: per bin of the histogram. `exact`: tensors without any error,
    which are in no bin, as are `compensated` and `undetectable` ones."""

    phase: Phase
    counts: tuple[int, ...]
    exact: int
    compensated: int
    undetectable: int


class ErrorHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of error / limit over the tensors that were judged by value. `edges`: of the bins, as powers of
    ten, so that the limit is at 0."""

    edges: tuple[float, ...]
    phases: tuple[PhaseErrors, ...]


class LossComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of a step on both sides; None if it is not finite. `rank`: -1 for a loss of all ranks. `error`, `limit`:
    as of `Divergence`."""

    step: int
    rank: int
    name: str
    a: float | None
    b: float | None
    status: Status
    error: float | None
    limit: float | None


class RecordSide(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a record. `missing`: variants that were requested, and whose recording did not end. `tensors`: of
    the plain run, merged over ranks. `cut`: ranks whose files end early.
    `versions`: of the libraries; `environment`: variables that change numerics; `deterministic`: torch's deterministic
    algorithms were on."""

    folder: str
    command: tuple[str, ...]
    layout: str
    device: str
    ranks: int
    level: str
    variants: tuple[str, ...]
    steps: tuple[int, ...]
    tensors: int
    missing: tuple[str, ...] = ()
    cut: tuple[int, ...] = ()
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
    deterministic: bool = False


class TensorCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tensors. `only_a`, `only_b`: of one side only, which are not compared."""

    identical: int
    within_rounding: int
    compensated: int
    different: int
    undetectable: int
    only_a: int
    only_b: int

    @property
    def compared(self) -> int:
        return self.identical + self.within_rounding + self.compensated + self.different + self.undetectable


class RecordComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Whether B computes what A computes. `first`: the first divergence in order of execution of A; `further`: others
    that do not follow from it. `modules`: in order of execution. `steps`: phases of the common steps, in order.
    `undetectable_reasons`: reason -> number of tensors. `rule` is None if values could not be judged. `tensors`: the
    judged tensors in order of execution, the most relevant ones if there are many; `tensors_left_out`: the number of
    the others. `losses`: of the common steps."""

    verdict: Verdict
    reason: str
    a: RecordSide
    b: RecordSide
    rule: ComparisonRule | None
    counts: TensorCounts
    first: Divergence | None
    further: tuple[Divergence, ...]
    modules: tuple[ModuleComparison, ...]
    steps: tuple[StepComparison, ...]
    histogram: ErrorHistogram
    losses: tuple[LossComparison, ...]
    tensors: tuple[TensorComparison, ...]
    tensors_left_out: int
    undetectable_reasons: dict[str, int]
    renamed: tuple[RenamedModule, ...]
    notes: tuple[str, ...]
