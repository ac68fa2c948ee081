"""Number of query-key pairs of an attention matrix that a mask keeps."""

from __future__ import annotations

from trainyard.trace.flops.operands import UnknownOperand

_MAX_LENGTH = 2**40


def kept_pairs(rows: int, columns: int, causal: int = 0, left: int = -1, right: int = -1) -> int:
    """Pairs of a matrix of `rows` queries and `columns` keys whose diagonal ends at the last query and the last key, as
    in flash-attention: query i keeps the keys from i + columns - rows - left to i + columns - rows + right. A negative
    `left` or `right` is unlimited; `causal` limits `right` to 0. Raises `UnknownOperand` for impossible lengths."""
    if not (0 <= rows <= _MAX_LENGTH and 0 <= columns <= _MAX_LENGTH):
        raise UnknownOperand
    shift = columns - rows
    right = 0 if causal else right
    last_kept = _sum_of_clipped(rows, shift + right + 1, columns) if right >= 0 else rows * columns
    first_kept = _sum_of_clipped(rows, shift - left, columns) if left >= 0 else 0
    return max(0, last_kept - first_kept)


def causal_pairs(rows: int, columns: int, shift: int) -> int:
    """Pairs that a causal mask keeps if query i keeps the keys up to i + shift: the sum over i of min(i + 1 + shift,
    columns), no term below zero."""
    return _sum_of_clipped(rows, shift + 1, columns)


def _sum_of_clipped(rows: int, first: int, limit: int) -> int:
    """The sum over i in [0, rows) of `first + i`, each clipped to [0, limit]."""
    begin = min(rows, max(0, -first))
    full = min(rows, max(begin, limit - first))
    growing = full - begin
    return growing * (first + begin) + growing * (growing - 1) // 2 + (rows - full) * limit
