"""Choices that rounding changes, such as the experts of a token.

`topk` and `sort` return values and their positions. If two values are equal within rounding, another implementation may
return them in another order, or choose the other. The values then agree within rounding although the positions differ.
Everything that is computed after such a choice may differ by more than rounding: the rows of tokens that are sorted by
expert are shifted, and experts have other numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainyard.numerics.compare.align_tensors import TensorPair, Tensors
from trainyard.numerics.compare.comparison_result import Status
from trainyard.numerics.tensor_record import TensorKey

_Area = tuple[int, str]
"""A step and a module; (0, "") for a whole training."""
_CORRECT = ("identical", "within rounding")


def rows_after_choice(
    pairs: Sequence[TensorPair],
    a: Tensors,
    status: Sequence[Status],
    are_integers: Sequence[bool],
    *,
    of_module: bool = False,
) -> list[int]:
    """The rows of the tensors of A that were computed after the first choice that rounding changed, on any rank.

    `are_integers`: whether the row is a tensor of integers, which are a choice if B's are not identical and the first
    output of the same call is within rounding. `of_module`: choices affect their module and its submodules only, in the
    same step.
    """
    rows = {pair.a: row for row, pair in enumerate(pairs)}
    positions = [(a[pair.a].step, a[pair.a].index) for pair in pairs]
    first: dict[_Area, tuple[int, int]] = {}
    for row, pair in enumerate(pairs):
        key = pair.a.tensor
        if are_integers[row] and status[row] != "identical" and key.operation and key.output:
            values = rows.get(pair.a._replace(tensor=key._replace(output=0)))
            if values is not None and status[values] in _CORRECT:
                area = (key.step, key.module) if of_module else (0, "")
                first[area] = min(positions[row], first.get(area, positions[row]))
    return [
        row
        for row, pair in enumerate(pairs)
        if any(first.get(area, positions[row]) < positions[row] for area in _areas(pair.a.tensor, of_module))
    ]


def _areas(key: TensorKey, of_module: bool) -> Iterator[_Area]:
    """The areas in which a choice affects a tensor."""
    if not of_module:
        yield 0, ""
        return
    module = key.module
    while module:
        yield key.step, module
        module = module.rpartition(".")[0]
    yield key.step, ""
