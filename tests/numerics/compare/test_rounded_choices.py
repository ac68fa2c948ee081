"""Choices that rounding changes: the experts of tokens whose scores are nearly equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trainyard.numerics.compare.align_tensors import TensorPair
from trainyard.numerics.compare.judge_tensors import OTHER_CHOICE, Judgements, RunsOfA, judge_tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.run_columns import run_columns
from trainyard.numerics.tensor_record import BUCKETS, TensorRecord

Values = np.ndarray[tuple[int], np.dtype[np.float64]]
SCORES = np.random.default_rng(0).normal(size=BUCKETS)
CHOSEN = np.arange(BUCKETS, dtype=np.float64)


def run(scores: Values, chosen: Values, shift: Callable[[Values], Values]) -> dict[LogicalKey, TensorRecord]:
    """A step in which experts are chosen by their scores, and tokens are sorted by expert."""
    operations = (
        ("aten.mm", 0, scores, "float32"),
        ("aten.topk", 0, scores[:8], "float32"),
        ("aten.topk", 1, chosen, "int64"),
        ("aten.index", 0, shift(SCORES), "float32"),
        ("aten.sum", 0, shift(SCORES), "float32"),
    )
    records = [
        TensorRecord(
            index=index,
            step=0,
            phase="forward",
            role="output",
            module="m",
            operation=operation,
            output=output,
            shape=values.shape,
            dtype=dtype,
            hash=str(values.tolist()),
            norm=float(np.linalg.norm(values)),
            sketch=np.resize(values, BUCKETS).tobytes(),
        )
        for index, (operation, output, values, dtype) in enumerate(operations)
    ]
    return {LogicalKey(record.key, 0): record for record in records}


def judged(scores_of_b: Values, chosen_of_b: Values) -> Judgements:
    """B has other choices, and the rows that follow are shifted."""
    rng = np.random.default_rng(1)
    runs = [run(SCORES * (1 + 1e-7 * rng.normal(size=BUCKETS)), CHOSEN, lambda values: values) for _ in range(5)]
    a, *replicas = runs
    b = run(scores_of_b, chosen_of_b, lambda values: np.roll(values, 1))
    keys, reference = list(a), run(SCORES, CHOSEN, lambda values: values)
    columns = [run_columns(keys, a, other) for other in (reference, *replicas)]
    return judge_tensors([TensorPair(key, key) for key in keys], RunsOfA(a, columns[1:], columns[0]), b)


def test_tensors_after_a_choice_that_rounding_changes_are_undetectable() -> None:
    judgements = judged(SCORES * (1 + 1e-7), CHOSEN[::-1].copy())
    assert judgements.status[:2] == ["within rounding", "within rounding"]
    assert judgements.status[3:] == ["undetectable", "undetectable"]
    assert judgements.reasons[3:] == [OTHER_CHOICE, OTHER_CHOICE]


@pytest.mark.parametrize(
    ("scores", "chosen"), [(SCORES * 1.01, CHOSEN[::-1].copy()), (SCORES, CHOSEN)], ids=["wrong scores", "same choice"]
)
def test_other_differences_are_judged(scores: Values, chosen: Values) -> None:
    assert judged(scores, chosen).status[3:] == ["different", "different"]
