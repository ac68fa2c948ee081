"""The record of a tensor: a summary of its values, from which two trainings are compared operation by operation.

All summaries have the same size, for tensors of any size. Its `sketch` is a linear projection with random signs
(AMS sketch; Alon, Matias, Szegedy 1996): the squared distance of two sketches is an unbiased estimate of the squared
distance of the tensors. It sees a single wrong element, a changed sign and a permutation, and the sketches of the
shards of a tensor add up to that of the tensor.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

BUCKETS = 64
"""Values of a sketch. A distance estimated from it has a relative standard deviation of 1/sqrt(2 * BUCKETS), 9 %."""
SAMPLES = 64
"""The most elements of a sample."""

Level = Literal["operations", "modules", "steps"]
"""Operations and modules; modules only; or gradients, weights and optimizer states only."""
Phase = Literal["forward", "backward", "optimizer"]
Role = Literal["output", "input", "gradient", "weight", "optimizer_state", "random_state", "data", "scalar"]


class NonFinite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counts of non-finite elements. `masked`: the negative infinities were written by a mask."""

    nan: int = 0
    positive: int = 0
    negative: int = 0
    masked: bool = False


class Shard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a logical tensor that a rank holds. `offset`, `shape`: in elements per dimension. `partial`: the
    logical tensor is the sum of these parts over the ranks."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    partial: bool = False


class TensorKey(NamedTuple):
    """By which the records of two trainings are matched."""

    step: int
    phase: Phase
    module: str
    operation: str
    role: Role
    name: str
    call: int
    output: int


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor at one point of a training step, on one rank.

    `index`: order of execution in the step. `module`: path of the module that was running, empty outside of modules.
    `operation`: name of the ATen operation, such as `aten.mm`; empty at the boundary of a module and for gradients,
    weights and states. `name`: of a parameter, a state (`exp_avg`) or an input; otherwise empty. `call`: number of the
    call of this operation in this module in this step and phase, from 0; `output`: number of the output.

    `inputs`: the `index` of the tensors of this step from which an operation computed this one, or, at the boundary of
    a module, of the operation that wrote it; views and collectives in between are passed over.

    `shape`: of the logical tensor. `shard`: the part that this rank holds; None if it holds the whole. `location`:
    `file:line` of the user's code. `hash`: of the exact bits in logical order, with the positions; empty if not taken.
    `norm` (L2), `maximum` (of absolute values), `mean`, `sketch` and `sample` are of the finite elements; the others
    count as 0. `mean`: the shard's part of it, so that means add up. `sample`: elements at positions that depend only
    on the number of elements of the logical tensor (`sample_positions`), as far as the shard holds them. Complex
    numbers are summarised as pairs, integers and bools as float64.
    """

    index: int
    step: int
    phase: Phase
    role: Role
    module: str = ""
    operation: str = ""
    name: str = ""
    call: int = 0
    output: int = 0
    inputs: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    shard: Shard | None = None
    location: str = ""
    hash: str = ""
    norm: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    nonfinite: NonFinite | None = None
    sketch: bytes = b""
    """`BUCKETS` float64 values, little-endian; empty if the values could not be read."""
    sample: bytes = b""
    """At most `SAMPLES` float64 values, little-endian."""

    @property
    def key(self) -> TensorKey:
        return TensorKey(
            self.step, self.phase, self.module, self.operation, self.role, self.name, self.call, self.output
        )


class RecordHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a rank's records were taken.

    `variant`: `plain`, `float64` (every floating-point operation computed in float64) or `replica-K` (results moved by
    up to `jitter_ulp` units in the last place, with the random `seed`). `level`: of detail. `steps`: the steps that
    were to be recorded. `command`: of the user's script, or the name of the job. `layout`: of the job, if known.
    `versions`: of the libraries; `environment`: variables that change numerics. `deterministic`: torch's deterministic
    algorithms were on. `replaced`: outputs of modules, gradients and weights were replaced by those of another run,
    after they were recorded.
    """

    format: int
    variant: str
    rank: int
    ranks: int
    level: Level
    steps: tuple[int, ...] = ()
    command: tuple[str, ...] = ()
    layout: str = ""
    device: str = ""
    seed: int = 0
    jitter_ulp: float = 0.0
    deterministic: bool = False
    replaced: bool = False
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}


def sample_positions(elements: int) -> list[int]:
    """Positions of the sample of a tensor with so many elements, in row-major order: evenly spaced, with the first and
    the last; all of them for up to `SAMPLES` elements."""
    if elements <= SAMPLES:
        return list(range(elements))
    return [at * (elements - 1) // (SAMPLES - 1) for at in range(SAMPLES)]
