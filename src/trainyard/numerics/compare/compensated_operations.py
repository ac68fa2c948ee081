"""Operations whose results differ although the module computes the same.

Two implementations of a module may have operations of the same names and shapes with other intermediate results: terms
added in another order, a product in parts. A result that differs is not a fault if the next output of its module, or else
of the modules around it, is within rounding. After the last output of a pass, the loss and the gradients decide.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from trainyard.numerics.compare.align_tensors import TensorPair
from trainyard.numerics.compare.comparison_result import Status

_CORRECT = ("identical", "within rounding")
_DECIDING = ("scalar", "gradient")
"""Roles of the tensors that decide about operations after the last output of a pass."""


def compensated_rows(pairs: Sequence[TensorPair], status: Sequence[Status]) -> list[int]:
    """The rows of differing operations that do not change what their modules compute."""
    outputs: dict[tuple[object, ...], list[int]] = defaultdict(list)
    deciding: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, pair in enumerate(pairs):
        key = pair.a.tensor
        if key.role == "output" and not key.operation:
            outputs[key.step, key.phase, key.module, pair.a.rank].append(row)
        elif key.role in _DECIDING:
            deciding[key.step, pair.a.rank].append(row)
    compensated: list[int] = []
    for row, pair in enumerate(pairs):
        if status[row] != "different" or not pair.a.tensor.operation:
            continue
        key = pair.a.tensor
        following = _next_output(row, pair, outputs)
        if following is None:
            later = [other for other in deciding[key.step, pair.a.rank] if other > row]
            if later and all(status[other] in _CORRECT for other in later):
                compensated.append(row)
        elif status[following] in _CORRECT:
            compensated.append(row)
    return compensated


def _next_output(row: int, pair: TensorPair, outputs: dict[tuple[object, ...], list[int]]) -> int | None:
    """The row of the next output, after `row`, of the module of a pair, or else of the innermost module around it."""
    key = pair.a.tensor
    for module in _and_around(key.module):
        rows = outputs.get((key.step, key.phase, module, pair.a.rank), [])
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
