"""Choices that rounding changes, such as the experts of a token.

`topk` and `sort` return values and their positions. If two values are equal within rounding, another implementation may
return them in another order, or choose the other. The values then agree within rounding although the positions differ.
Everything that is computed after such a choice may differ by more than rounding: the rows of tokens that are sorted by
expert are shifted, and experts have other numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.numerics.compare.align_tensors import TensorPair, Tensors
from trainyard.numerics.compare.comparison_result import Status

_CORRECT = ("identical", "within rounding")


def rows_after_choice(
    pairs: Sequence[TensorPair], a: Tensors, status: Sequence[Status], are_integers: Sequence[bool]
) -> list[int]:
    """The rows of the tensors of A that were computed after the first choice that rounding changed, on any rank.

    `are_integers`: whether the row is a tensor of integers, which are a choice if B's are not identical and the first
    output of the same call is within rounding.
    """
    rows = {pair.a: row for row, pair in enumerate(pairs)}
    positions = [(a[pair.a].step, a[pair.a].index) for pair in pairs]
    choices: list[tuple[int, int]] = []
    for row, pair in enumerate(pairs):
        key = pair.a.tensor
        if are_integers[row] and status[row] != "identical" and key.operation and key.output:
            values = rows.get(pair.a._replace(tensor=key._replace(output=0)))
            if values is not None and status[values] in _CORRECT:
                choices.append(positions[row])
    return [row for row, position in enumerate(positions) if position > min(choices)] if choices else []
