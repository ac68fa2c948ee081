"""The listed tensors, the histogram of errors and the losses of a comparison."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.compared_records import large
from tests.numpy_training import NumpyTraining
from trainyard.numerics.compare.align_tensors import Alignment
from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.compare.comparison_result import TensorPoint
from trainyard.numerics.compare.error_histogram import count_errors
from trainyard.numerics.compare.judge_tensors import Judgements
from trainyard.numerics.compare.list_tensors import list_tensors
from trainyard.numerics.compare.logical_tensors import LogicalKey
from trainyard.numerics.compare.losses import is_loss
from trainyard.numerics.tensor_record import TensorKey, TensorRecord


@pytest.fixture(scope="module")
def judged() -> tuple[Alignment, Judgements]:
    return large(layers=12, steps=2)


def listed(alignment: Alignment, judgements: Judgements, most: int) -> list[TensorKey]:
    record = TensorRecord(index=0, step=0, phase="forward", role="output")
    records = {pair.a: record for pair in alignment.pairs}
    key = alignment.pairs[judgements.status.index("different")].a.tensor
    point = TensorPoint(**key._asdict(), rank=-1, shape=(), dtype_a="", dtype_b="", location_a="", location_b="")
    rows = list_tensors(alignment, judgements, records, records, point, most)
    return [TensorKey(*(getattr(row, name) for name in TensorKey._fields)) for row in rows]


@pytest.mark.parametrize("most", [1, 130, 500, 100_000])
def test_listed_tensors_are_bounded_and_in_order_of_execution(judged: tuple[Alignment, Judgements], most: int) -> None:
    alignment, judgements = judged
    keys = [pair.a.tensor for pair in alignment.pairs]
    chosen = listed(alignment, judgements, most)
    assert len(chosen) == min(most, len(keys))
    assert chosen == [key for key in keys if key in set(chosen)]


def test_listed_tensors_have_the_fault_and_as_many_of_each_module(judged: tuple[Alignment, Judgements]) -> None:
    alignment, judgements = judged
    keys = [pair.a.tensor for pair in alignment.pairs]
    chosen = listed(alignment, judgements, 500)
    first = keys[judgements.status.index("different")]
    near = [key for key in keys if (key.module, key.step) == (first.module, first.step)]
    assert set(near) <= set(chosen)
    counts = Counter(key.module for key in chosen if key.module != first.module)
    assert set(counts) == {key.module for key in keys} - {first.module}
    assert max(counts.values()) - min(counts.values()) <= 1
    for module in counts:
        rows = [row for row, key in enumerate(keys) if key.module == module]
        worst = max(rows, key=lambda row: judgements.of_limit[row])
        different = next(row for row in rows if judgements.status[row] == "different")
        assert {keys[worst], keys[different]} <= set(chosen)


def test_histogram_counts_each_judged_tensor_once(judged: tuple[Alignment, Judgements]) -> None:
    alignment, judgements = judged
    histogram = count_errors(alignment, judgements)
    for phase in histogram.phases:
        rows = [row for row, pair in enumerate(alignment.pairs) if pair.a.tensor.phase == phase.phase]
        powers = np.log10(judgements.of_limit[rows])
        expected = [
            int(((powers >= low) & (powers < high)).sum()) for low, high in zip(histogram.edges, histogram.edges[1:])
        ]
        assert list(phase.counts) == expected
        assert sum(phase.counts) == len(rows)


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0], [1.0, 1.0], [1e-30, 1e30], [np.inf, 0.5], [0.1, 10.0]], ids=str)
def test_histogram_of_extreme_errors(ratios: list[float]) -> None:
    alignment, judgements = large(layers=1, steps=1)
    count = len(ratios)
    pairs = alignment.pairs[:count]
    some = Judgements(
        ["within rounding"] * count, np.array(ratios), np.ones(count), np.ones(count), [""] * count, [None] * count,
        judgements.rule,
    )  # fmt: skip
    histogram = count_errors(alignment._replace(pairs=pairs), some)
    assert sum(phase.exact + sum(phase.counts) for phase in histogram.phases) == count
    assert all(len(phase.counts) == max(0, len(histogram.edges) - 1) for phase in histogram.phases)
    assert len(histogram.edges) <= 4 * 20 + 1


def test_losses_of_both_sides(tmp_path: Path) -> None:
    good = NumpyTraining().write_all(tmp_path / "good")
    other = NumpyTraining(epsilon=1e-2).write(tmp_path / "other")
    comparison = compare_records(good, other)
    assert [(loss.step, loss.name) for loss in comparison.losses] == [(0, "loss"), (1, "loss")]
    for loss in comparison.losses:
        assert loss.a is not None
        assert loss.b is not None
        assert loss.error == pytest.approx(abs(loss.b - loss.a) / loss.a, rel=1e-2)
        assert loss.status == "different"


def test_number_of_targets_is_not_the_loss() -> None:
    record = TensorRecord(index=0, step=0, phase="forward", role="output", dtype="float32")
    loss, targets = (
        LogicalKey(TensorKey(0, "forward", "", "aten.nll_loss_forward", "output", "", 0, output), -1)
        for output in (0, 1)
    )
    assert is_loss(loss, record)
    assert not is_loss(targets, record)


def test_modules_before_the_fault_are_right_in_its_phase(tmp_path: Path) -> None:
    good = NumpyTraining().write_all(tmp_path / "good")
    other = NumpyTraining(
        fault=lambda key, values: (
            values * 1.1 if (key.module, key.operation, key.phase) == ("layers.1", "aten.mm", "forward") else values
        )
    ).write(tmp_path / "other")
    comparison = compare_records(good, other)
    near = {module.module: module.near_fault for module in comparison.modules}
    status = {name: errors.status for name, errors in near.items() if errors is not None}
    assert status["layers.0"] != "different"
    assert status["layers.1"] == status["layers.2"] == "different"
    before = next(module for module in comparison.modules if module.module == "layers.0")
    assert (before.first_step, before.first_phase) == (0, "backward")
