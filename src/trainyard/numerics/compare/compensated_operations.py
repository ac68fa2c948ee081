"""Operations whose results differ although the module computes the same.

Two implementations of a module may have operations of the same names and shapes with other intermediate results: terms
added in another order, a product in parts. A result that differs is not a fault if the tensors that follow from it, and
that any implementation has, are within rounding: the next output of its module, or of the modules around it, and the
inputs of its submodules until then, if they were recorded; in the backward pass, the gradients of the module's
parameters and the next gradient of another module's output.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from trainyard.numerics.compare.align_tensors import TensorPair
from trainyard.numerics.compare.comparison_result import Status
from trainyard.numerics.tensor_record import TensorKey

_CORRECT = ("identical", "within rounding")


def compensated_rows(pairs: Sequence[TensorPair], status: Sequence[Status]) -> list[int]:
    """The rows of differing operations that do not change what their modules compute."""
    following = _FollowingTensors(pairs)
    compensated: list[int] = []
    for row, pair in enumerate(pairs):
        key = pair.a.tensor
        if status[row] == "different" and key.operation and key.role == "output":
            decisive = following.rows(row)
            if decisive and all(status[other] in _CORRECT for other in decisive):
                compensated.append(row)
    return compensated


class _FollowingTensors:
    """The tensors that follow from an operation, and that every implementation has."""

    def __init__(self, pairs: Sequence[TensorPair]) -> None:
        self.pairs = pairs
        self.outputs: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self.inputs: dict[tuple[object, ...], list[int]] = defaultdict(list)
        """Inputs of the submodules of a module."""
        self.gradients: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.scalars: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, pair in enumerate(pairs):
            key = pair.a.tensor
            if key.role == "output" and not key.operation:
                self.outputs[key.step, key.phase, key.module, pair.a.rank].append(row)
            elif key.role == "input":
                self.inputs[key.step, key.phase, key.module.rpartition(".")[0], pair.a.rank].append(row)
            elif key.role == "gradient":
                self.gradients[key.step, pair.a.rank].append(row)
            elif key.role == "scalar":
                self.scalars[key.step, pair.a.rank].append(row)

    def rows(self, row: int) -> list[int]:
        """The rows that decide about the operation in `row`; empty if there are none."""
        key = self.pairs[row].a.tensor
        later = [other for other in self.gradients[key.step, self.pairs[row].a.rank] if other > row]
        if key.phase == "optimizer":
            return later
        if key.phase == "backward":
            return self._after_backward(key, later)
        output = self._next_output(row)
        if output is not None:
            inputs = self.inputs.get((key.step, key.phase, key.module, self.pairs[row].a.rank), ())
            return [*(other for other in inputs if row < other < output), output]
        end = later[0] if later else len(self.pairs)
        scalars = [other for other in self.scalars[key.step, self.pairs[row].a.rank] if row < other < end]
        return [*scalars, *later[:1]]

    def _after_backward(self, key: TensorKey, later: Sequence[int]) -> list[int]:
        """The gradients that follow from an operation of the backward pass, among `later` ones."""
        own: list[int] = []
        passed_on: list[int] = []
        for row in later:
            other = self.pairs[row].a.tensor
            is_inside = not key.module or other.module == key.module or other.module.startswith(f"{key.module}.")
            if other.name and is_inside:
                own.append(row)
            elif not other.name and not (is_inside and key.module) and not passed_on:
                passed_on.append(row)
        return [*(own if key.module else ()), *passed_on] or own

    def _next_output(self, row: int) -> int | None:
        """The row of the next output, after `row`, of its module, or else of the innermost module around it."""
        key = self.pairs[row].a.tensor
        for module in _and_around(key.module):
            rows = self.outputs.get((key.step, key.phase, module, self.pairs[row].a.rank), [])
            at = bisect_right(rows, row)
            if at < len(rows):
                return rows[at]
        return None


def _and_around(module: str) -> Iterator[str]:
    """The path of a module, then those of the modules around it, to the root."""
    while module:
        yield module
        module = module.rpartition(".")[0]
    yield ""
