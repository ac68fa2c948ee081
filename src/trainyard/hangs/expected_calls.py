"""Predict the calls of a rank from its own history: training repeats the same collectives, step after step.

If ranks differ and no majority shows which of them deviates, the rank that departs from its earlier steps does.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.hangs.collectives import Call, differences

_CONTEXT = 64
"""Largest number of earlier calls that are compared to find the previous occurrence of a position."""
_HISTORY = 4096
"""Largest number of earlier calls that are searched."""
_AHEAD = 64
"""Number of calls that are predicted."""


def expected_calls(calls: Sequence[Call], end: int) -> list[Call]:
    """Predict the calls that follow `calls[:end]`: those that followed the last position with the longest equal
    context, at most `_AHEAD`; empty if the last call occurs only once.

    `calls`: of one rank, oldest first. The context is compared by group, operation, size and line of code; if sizes
    vary from step to step, so that less than two calls are equal, without them.
    """
    for with_sizes in (True, False):
        position, length = _previous_position([_key(call, with_sizes) for call in calls[:end]])
        if length > 1 or (length and not with_sizes):
            return list(calls[position + 1 : end][:_AHEAD])
    return []


def _previous_position(keys: Sequence[object]) -> tuple[int, int]:
    """(position of its last key, length) of the longest sequence of `keys` that equals the last ones and ends before
    the last position; (-1, 0) if the last key occurs once. Of several, the latest. Sequences are compared up to
    `_CONTEXT` keys, in the last `_HISTORY` positions. `keys`: one for each call of a rank, equal for equal calls."""
    last = len(keys) - 1
    best_position, best_length = -1, 0
    for position in range(last - 1, max(-1, last - 1 - _HISTORY), -1):
        length = 0
        while length < min(_CONTEXT, position + 1) and keys[position - length] == keys[last - length]:
            length += 1
        if length > best_length:
            best_position, best_length = position, length
        if length == _CONTEXT:
            break
    return best_position, best_length


def conforms(calls: Sequence[Call], index: int, exact: bool = False) -> bool | None:
    """Whether `calls[index]` is the call that the rank's history predicts, in operation, group, size, number format and
    line of code; None if the history predicts nothing. `exact`: as for `differences`."""
    expected = expected_calls(calls, index)
    if not expected:
        return None
    call = calls[index]
    return is_same_call(expected[0], call, exact) and is_same_line(expected[0], call) is not False


def is_same_call(call: Call, other: Call, exact: bool = False) -> bool:
    """Whether two calls issue the same operation with the same sizes and number formats in the same group. `exact`: as
    for `differences`."""
    return call.group == other.group and not differences(call, other, exact)


def is_same_line(call: Call, other: Call) -> bool | None:
    """Whether two calls were issued by the same chain of Python calls; None if a stack was not recorded."""
    if not call.first.stack or not other.first.stack:
        return None
    return call.first.stack == other.first.stack


def _key(call: Call, with_sizes: bool) -> tuple[object, ...]:
    sizes = call.first.input_sizes if with_sizes else None
    return (call.group, call.name, call.first.source, call.first.target, sizes, call.first.stack)
