"""Delta debugging: the smallest set of changes that shows a fault (`ddmin`; Zeller and Hildebrandt 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

T = TypeVar("T")
Outcome = Literal["same", "different", "unresolved"]


def minimise(changes: Sequence[T], test: Callable[[Sequence[T]], Outcome]) -> list[T]:
    """A subset of `changes`, in order, with the outcome "different" from which no single change can be left out.

    `test`: the outcome with some of the changes; that of all must be "different". It is called at most once for each
    subset. The number of calls is logarithmic for a single cause, and at most quadratic.
    """
    known: dict[frozenset[int], Outcome] = {}

    def is_different(chosen: Sequence[int]) -> bool:
        key = frozenset(chosen)
        if key not in known:
            known[key] = test([changes[at] for at in chosen])
        return known[key] == "different"

    left, parts = list(range(len(changes))), 2
    while len(left) > 1:
        chunks = _divide(left, parts)
        smaller = next((chunk for chunk in chunks if is_different(chunk)), None)
        if smaller is not None:
            left, parts = smaller, 2
            continue
        complements = ([at for at in left if at not in chunk] for chunk in chunks)
        smaller = next((rest for rest in complements if rest and is_different(rest)), None) if parts > 2 else None
        if smaller is not None:
            left, parts = smaller, max(parts - 1, 2)
        elif parts >= len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return [changes[at] for at in left]


def _divide(values: Sequence[int], parts: int) -> list[list[int]]:
    """The values in `parts` pieces of nearly equal length, none empty."""
    bounds = [at * len(values) // parts for at in range(parts + 1)]
    return [list(values[begin:end]) for begin, end in pairwise(bounds) if begin < end]
