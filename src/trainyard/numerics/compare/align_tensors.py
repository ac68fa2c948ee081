"""Matches the tensors of two records.

Boundaries of modules, parameters and states have the same keys on both sides. Operations of a module are matched in
their order: an operation that one side lacks must not shift the numbers of the calls behind it, so that the sequences
are aligned by operation and shape, and among equal ones by value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.match_modules import ModuleMatches, match_modules
from trainyard.numerics.tensor_record import TensorRecord

_CLOSE = 0.01
"""Relative difference of norms below which two tensors are similar."""
_MOST_CELLS = 25_000_000
"""Pairs of operations of a module that are compared; longer sequences are matched by the numbers of calls."""

Tensors = Mapping[LogicalKey, TensorRecord]


class TensorPair(NamedTuple):
    """The keys of a tensor on the two sides."""

    a: LogicalKey
    b: LogicalKey


class Alignment(NamedTuple):
    """`pairs`: in order of execution of A. `only_a`, `only_b`: keys without a counterpart in modules that both sides
    have, in order of execution; of operations only where the other side recorded operations of that module.
    `parameters_a`: gradients of A in modules that B lacks, if B has no parameters in modules that A lacks."""

    pairs: tuple[TensorPair, ...]
    only_a: tuple[LogicalKey, ...]
    only_b: tuple[LogicalKey, ...]
    parameters_a: tuple[LogicalKey, ...]
    modules: ModuleMatches


def align_tensors(a: Tensors, b: Tensors) -> Alignment:
    """Matches the tensors of A and B. Steps that only one side has must have been removed."""
    modules = match_modules(a, b)
    pairs: dict[LogicalKey, LogicalKey] = {}
    renamed = {_renamed(key, modules.names): key for key in b if key.tensor.module in modules.names}
    for key in a:
        if not key.tensor.operation and key in renamed:
            pairs[key] = renamed[key]
    sequences_a = _sequences(a)
    sequences_b = _sequences(renamed)
    for group, keys_a in sequences_a.items():
        keys_b = [renamed[key] for key in sequences_b.get(group, ())]
        pairs.update(_align_operations(keys_a, keys_b, a, b))
    matched_b = set(pairs.values())
    common = set(modules.names.values())
    unmatched_a = _gradients_outside(a, common)
    unmatched_b = _gradients_outside(b, modules.names.keys())
    only_a = [key for key in a if key not in pairs and key.tensor.module in common]
    only_b = [key for short, key in renamed.items() if key not in matched_b and _has_level(short, sequences_a)]
    return Alignment(
        pairs=tuple(TensorPair(key, pairs[key]) for key in a if key in pairs),
        only_a=tuple(key for key in only_a if _has_level(key, sequences_b)),
        only_b=tuple(only_b),
        parameters_a=() if unmatched_b else unmatched_a,
        modules=modules,
    )


def _gradients_outside(tensors: Tensors, modules: Collection[str]) -> tuple[LogicalKey, ...]:
    """The gradients of parameters of other modules."""
    return tuple(
        key for key in tensors if key.tensor.role == "gradient" and key.tensor.name and key.tensor.module not in modules
    )


def _renamed(key: LogicalKey, names: Mapping[str, str]) -> LogicalKey:
    """A key of B with the path that its module has in A."""
    return LogicalKey(key.tensor._replace(module=names[key.tensor.module]), key.rank)


def _group(key: LogicalKey) -> tuple[object, ...]:
    return (key.tensor.step, key.tensor.phase, key.tensor.module, key.rank)


def _has_level(key: LogicalKey, sequences: Mapping[tuple[object, ...], object]) -> bool:
    """Whether the side with these `sequences` would have recorded the tensor if it had computed it."""
    return not key.tensor.operation or _group(key) in sequences


def _sequences(keys: Iterable[LogicalKey]) -> dict[tuple[object, ...], list[LogicalKey]]:
    """The operations of each module in a step, phase and rank, in order of execution."""
    sequences: dict[tuple[object, ...], list[LogicalKey]] = defaultdict(list)
    for key in keys:
        if key.tensor.operation:
            sequences[_group(key)].append(key)
    return sequences


def _align_operations(
    keys_a: Sequence[LogicalKey], keys_b: Sequence[LogicalKey], a: Tensors, b: Tensors
) -> dict[LogicalKey, LogicalKey]:
    """Key of A -> key of B for the operations of one module."""
    if not keys_b:
        return {}
    names_a, names_b = [_name(key) for key in keys_a], [_name(key) for key in keys_b]
    records_a, records_b = [a[key] for key in keys_a], [b[key] for key in keys_b]
    if names_a == names_b and [record.shape for record in records_a] == [record.shape for record in records_b]:
        return dict(zip(keys_a, keys_b))
    if len(keys_a) * len(keys_b) > _MOST_CELLS:
        calls_b = {(*name, key.tensor.call): key for name, key in zip(names_b, keys_b)}
        calls_a = {(*name, key.tensor.call): key for name, key in zip(names_a, keys_a)}
        return {key: calls_b[call] for call, key in calls_a.items() if call in calls_b}
    rows = best_alignment(_scores(names_a, names_b, records_a, records_b))
    return {keys_a[row]: keys_b[column] for row, column in rows}


def _name(key: LogicalKey) -> tuple[str, str, int]:
    return (key.tensor.operation, key.tensor.role, key.tensor.output)


def _scores(
    names_a: Sequence[object],
    names_b: Sequence[object],
    records_a: Sequence[TensorRecord],
    records_b: Sequence[TensorRecord],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The score of matching each operation of A with each of B: 0 for other operations or shapes, more for values of
    about the same norm."""
    numbers: dict[tuple[object, ...], int] = {}
    kinds_a, kinds_b = (
        np.array([numbers.setdefault((name, record.shape), len(numbers)) for name, record in zip(names, records)])
        for names, records in ((names_a, records_a), (names_b, records_b))
    )
    norms_a, norms_b = (np.array([record.norm for record in records]) for records in (records_a, records_b))
    larger = np.maximum(norms_a[:, None], norms_b[None, :])
    is_close = np.abs(norms_a[:, None] - norms_b[None, :]) <= _CLOSE * larger
    return np.where(kinds_a[:, None] == kinds_b[None, :], 1.0 + 0.5 * is_close, 0.0)


def best_alignment(scores: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[tuple[int, int]]:
    """The pairs (row, column) of positive scores, increasing in both, with the largest sum."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for row in range(rows):
        matched = np.where(scores[row] > 0, best[row, :-1] + scores[row], 0.0)
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(best[row, 1:], matched))
    pairs: list[tuple[int, int]] = []
    row, column = rows, columns
    while row and column:
        score = scores[row - 1, column - 1]
        if score > 0 and best[row, column] == best[row - 1, column - 1] + score:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif best[row, column] == best[row - 1, column]:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]
