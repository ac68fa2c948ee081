"""Alignment of operations, against an exhaustive search, and of modules."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainyard.numerics.compare.align_tensors import align_tensors, best_alignment
from trainyard.numerics.compare.logical_tensors import ALL_RANKS, LogicalKey
from trainyard.numerics.tensor_record import TensorRecord

SCORES = st.integers(0, 6).flatmap(
    lambda columns: st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 1.5]), min_size=columns, max_size=columns), min_size=1, max_size=6
    )
)


def best_sum(scores: list[list[float]]) -> float:
    """The largest sum of an alignment, by trying every choice."""

    @cache
    def best(row: int, column: int) -> float:
        if row == len(scores) or column == len(scores[0]):
            return 0.0
        matched = scores[row][column] + best(row + 1, column + 1)
        return max(matched, best(row + 1, column), best(row, column + 1))

    return best(0, 0)


@given(SCORES)
def test_alignment_has_the_largest_sum(scores: list[list[float]]) -> None:
    pairs = best_alignment(np.array(scores).reshape(len(scores), -1))
    assert all(scores[row][column] > 0 for row, column in pairs)
    assert all(first[0] < second[0] and first[1] < second[1] for first, second in pairwise(pairs))
    assert sum(scores[row][column] for row, column in pairs) == best_sum(scores)


def tensors(operations: list[str], norms: list[float], module: str = "m") -> dict[LogicalKey, TensorRecord]:
    """Operations of one module, in order."""
    calls: dict[str, int] = {}
    records: dict[LogicalKey, TensorRecord] = {}
    for index, (operation, norm) in enumerate(zip(operations, norms)):
        call = calls[operation] = calls.get(operation, -1) + 1
        record = TensorRecord(
            index=index, step=0, phase="forward", role="output", module=module, operation=operation, call=call,
            shape=(4,), norm=norm,
        )  # fmt: skip
        records[LogicalKey(record.key, ALL_RANKS)] = record
    return records


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=12), st.data())
def test_removed_operation_is_the_one_without_a_counterpart(operations: list[str], data: st.DataObject) -> None:
    """Whatever the number of its call, since values distinguish operations of the same name."""
    removed = data.draw(st.integers(0, len(operations) - 1))
    norms = [2.0**at for at in range(len(operations))]
    a = tensors(operations, norms)
    b = tensors(operations[:removed] + operations[removed + 1 :], norms[:removed] + norms[removed + 1 :])
    alignment = align_tensors(a, b)
    assert [a[key].index for key in alignment.only_a] == [removed]
    assert alignment.only_b == ()
    assert all(a[pair.a].norm == b[pair.b].norm for pair in alignment.pairs)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_record_matches_itself(operations: list[str]) -> None:
    record = tensors(operations, [1.0] * len(operations))
    alignment = align_tensors(record, record)
    assert [(pair.a, pair.b) for pair in alignment.pairs] == [(key, key) for key in record]
    assert alignment.only_a == alignment.only_b == ()


def test_modules_without_operations_on_one_side_are_not_reported() -> None:
    a = tensors(["a", "b"], [1.0, 2.0])
    boundary = TensorRecord(index=9, step=0, phase="forward", role="output", module="m", shape=(4,))
    key = LogicalKey(boundary.key, ALL_RANKS)
    alignment = align_tensors({**a, key: boundary}, {key: boundary})
    assert [pair.a for pair in alignment.pairs] == [key]
    assert alignment.only_a == ()
