"""Variants: layouts that are one row of a plan, the fastest of them.

Variants have the same sizes of all parallel axes, the same ZeRO stage, activation checkpointing and offloading. They
differ in the micro-batch size, in the pipeline schedule or in the stages per rank, which are settings rather than
layouts: changing them moves no tensor to another rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from trainyard import words
from trainyard.predict.search.search_space import Runnable, SearchSpace

SAME_AXES = (*words.AXES, "zero", "activation_checkpoint", "offload")
"""Axes of `layout_space.AXES` in which variants agree."""


def variant_key(row: Mapping[str, int]) -> tuple[int, ...]:
    """A key that variants share. `row`: axis -> value of a layout."""
    return tuple(row[axis] for axis in SAME_AXES)


def axes_of(key: tuple[int, ...]) -> dict[str, int]:
    """Axis -> the value that the variants of this key have."""
    return dict(zip(SAME_AXES, key, strict=True))


def key_of(space: SearchSpace, runnable: Runnable) -> tuple[int, ...]:
    """The key of a simulated case."""
    return variant_key(space.sizes.layouts.row(runnable[0].index))


def fastest_variants(space: SearchSpace, runnable: Iterable[Runnable]) -> Iterator[Runnable]:
    """Yields the first of each group of variants, which is the fastest if `runnable` is in the order of time."""
    seen: set[tuple[int, ...]] = set()
    for each in runnable:
        key = key_of(space, each)
        if key not in seen:
            seen.add(key)
            yield each


def count_variants(space: SearchSpace, key: tuple[int, ...]) -> int:
    """The number of layouts that fit and have this key."""
    same = np.logical_and.reduce([space.column(axis) == value for axis, value in axes_of(key).items()])
    return int(np.count_nonzero(same))
