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

    `calls`: of one rank, oldest first. The context is compared by group, operation and line of code, not by size, which
    may vary from step to step.
    """
    if end <= 0:
        return []
    keys = [_key(call) for call in calls[:end]]
    best_length, best_position = 0, -1
    for position in range(end - 2, max(-1, end - 2 - _HISTORY), -1):
        if keys[position] != keys[end - 1]:
            continue
        length = 1
        while length < _CONTEXT and position >= length and keys[position - length] == keys[end - 1 - length]:
            length += 1
        if length > best_length:
            best_length, best_position = length, position
        if length == _CONTEXT:
            break
    return list(calls[best_position + 1 : end][:_AHEAD]) if best_position >= 0 else []


def conforms(calls: Sequence[Call], index: int) -> bool | None:
    """Whether `calls[index]` is the call that the rank's history predicts, in operation, group, size and number format;
    None if the history predicts nothing."""
    expected = expected_calls(calls, index)
    if not expected:
        return None
    return is_same_call(expected[0], calls[index])


def is_same_call(call: Call, other: Call) -> bool:
    """Whether two calls issue the same operation with the same sizes and number formats in the same group."""
    return call.group == other.group and not differences(call, other)


def is_same_line(call: Call, other: Call) -> bool | None:
    """Whether two calls were issued by the same chain of Python calls; None if a stack was not recorded."""
    if not call.first.stack or not other.first.stack:
        return None
    return call.first.stack == other.first.stack


def _key(call: Call) -> tuple[object, ...]:
    location = call.first.location
    return (call.group, call.name, (location.file, location.line) if location else None)
