"""The result of checking the operations of a training against float64, as plain data."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from trainyard.numerics.tensor_record import Phase

MOST_RATIO = 1e12
"""The largest ratio of an error to its bound that is reported; also that of values that are not finite."""


class KernelCheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to check of a training. `most_elements`: operations on larger tensors are left out; `most_calls`: calls of
    an operation in a module that are checked in each phase of a step."""

    most_elements: int = 1 << 20
    most_calls: int = 2


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and dtype of a tensor that entered an operation."""

    shape: tuple[int, ...]
    dtype: str


class WorstElement(msgspec.Struct, frozen=True, kw_only=True):
    """The element of a result with the largest ratio of error to bound. `output`: number of the result, those that the
    operation writes in place first; `index`: position in it. `value`: in the script; `reference`: in float64; either is
    None if it is not finite, and `nonfinite` is then `inf`, `-inf` or `nan` of the script's value. `location`:
    `file:line` of the user's code; empty in the backward pass."""

    output: int
    index: tuple[int, ...]
    value: float | None
    reference: float | None
    bound: float
    dtype: str
    inputs: tuple[InputTensor, ...]
    nonfinite: str = ""
    location: str = ""
    step: int = 0
    call: int = 0
    rank: int = 0


class CheckedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The checked calls of an operation in a module, over all ranks. `elements`: of their results; `undetectable`:
    those of them that could be wrong by 100 % without an alarm; `exceeding`: those with an error above the bound.
    `ratio`: the largest ratio of an error to its bound, at most `MOST_RATIO`; `worst`: that element, None without
    elements."""

    module: str
    operation: str
    phase: Phase
    calls: int
    elements: int
    undetectable: int
    exceeding: int
    ratio: float
    worst: WorstElement | None


class UncheckedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of an operation that were not checked, over all ranks."""

    operation: str
    reason: str
    calls: int


class RankCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The checked operations of a rank in order of execution. `steps`: the number of steps that it finished."""

    rank: int
    ranks: int
    device: str
    steps: int
    operations: tuple[CheckedOperation, ...]
    unchecked: tuple[UncheckedOperation, ...]


class KernelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of some training steps, compared with float64. `operations`: in order of execution, those that
    exceed their bound first. `unchecked`: the most frequent first. `seconds`: the time that the command took."""

    schema: Literal["trainyard/numerics-kernels/1"] = "trainyard/numerics-kernels/1"
    command: tuple[str, ...]
    device: str
    ranks: int
    steps: tuple[int, ...]
    seconds: float
    operations: tuple[CheckedOperation, ...]
    unchecked: tuple[UncheckedOperation, ...]

    @property
    def exceeding(self) -> tuple[CheckedOperation, ...]:
        """The operations with an error above the bound."""
        return tuple(operation for operation in self.operations if operation.exceeding)

    @property
    def unchecked_reasons(self) -> dict[str, int]:
        """Reason -> calls that were not checked for it, the most frequent first."""
        calls: Counter[str] = Counter()
        for operation in self.unchecked:
            calls[operation.reason] += operation.calls
        return dict(calls.most_common())

    @property
    def exit_code(self) -> int:
        """0 if all operations are within their bounds, 1 if some exceed them, 3 if nothing could be checked."""
        if self.exceeding:
            return 1
        return 0 if any(operation.elements > operation.undetectable for operation in self.operations) else 3
