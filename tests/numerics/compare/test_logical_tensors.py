"""Tensors from the shards, summands and replicas that ranks recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numpy_training import sketch, summarised
from trainyard.numerics.compare.logical_tensors import ALL_RANKS, merge_ranks
from trainyard.numerics.record_files import FORMAT, RankRecord
from trainyard.numerics.tensor_record import RecordHeader, Role, Shard, TensorRecord


def weight(shape: tuple[int, ...], shard: Shard | None = None, role: Role = "weight") -> TensorRecord:
    return TensorRecord(
        index=0, step=0, phase="optimizer", role=role, module="m", name="weight", dtype="float32", shape=shape,
        shard=shard,
    )  # fmt: skip


def ranks(records: list[TensorRecord]) -> list[RankRecord]:
    """One record per rank."""
    return [
        RankRecord(
            RecordHeader(format=FORMAT, variant="plain", rank=rank, ranks=len(records), level="steps"), [record], False
        )
        for rank, record in enumerate(records)
    ]


@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 6), st.integers(0, 1000))
def test_shards_add_up_to_the_tensor(rows: int, columns: int, world: int, seed: int) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, columns))
    parts = [part for part in np.array_split(np.arange(rows), world) if len(part)]
    records = [
        summarised(
            weight(values.shape, Shard(offset=(int(part[0]), 0), shape=(len(part), columns))),
            values[part],
            int(part[0]) * columns,
        )
        for part in parts
    ]
    merged = next(iter(merge_ranks(ranks(records)).tensors.values()))
    assert np.allclose(np.frombuffer(merged.sketch), sketch(values))
    assert merged.norm == pytest.approx(float(np.linalg.norm(values)))
    assert merged.mean == pytest.approx(float(values.mean()))
    assert merged.maximum == np.abs(values).max()


def test_summands_add_up_and_replicas_of_shards_count_once() -> None:
    values = np.random.default_rng(0).standard_normal((4, 4))
    whole = Shard(offset=(0, 0), shape=(4, 4), partial=True)
    summed = merge_ranks(ranks([summarised(weight((4, 4), whole), part) for part in (values, 2 * values)]))
    assert np.allclose(np.frombuffer(next(iter(summed.tensors.values())).sketch), sketch(3 * values))
    half = [Shard(offset=(start, 0), shape=(2, 4)) for start in (0, 2)]
    records = [
        summarised(weight((4, 4), shard), values[shard.offset[0] :][:2], 4 * shard.offset[0])
        for shard in (half[0], half[1], half[0], half[1])
    ]
    merged = merge_ranks(ranks(records))
    assert np.allclose(np.frombuffer(next(iter(merged.tensors.values())).sketch), sketch(values))
    assert merged.differing == ()


def test_replicas_that_differ_are_listed_with_their_ranks() -> None:
    values = np.ones((3, 3))
    records = [summarised(weight((3, 3)), values + (rank in (1, 3))) for rank in range(4)]
    merged = merge_ranks(ranks(records))
    assert [replicas.ranks for replicas in merged.differing] == [(0, 1, 3)]


def test_missing_shard_makes_the_tensor_incomplete() -> None:
    shard = Shard(offset=(0, 0), shape=(2, 3))
    merged = merge_ranks(ranks([summarised(weight((4, 3), shard), np.ones((2, 3)))]))
    assert (len(merged.tensors), len(merged.incomplete)) == (0, 1)


def test_activations_of_ranks_stay_apart() -> None:
    records = [summarised(weight((2,), role="output"), np.full(2, rank)) for rank in range(3)]
    assert [key.rank for key in merge_ranks(ranks(records)).tensors] == [0, 1, 2]
    alone = merge_ranks(ranks(records[:1]))
    assert [key.rank for key in alone.tensors] == [ALL_RANKS]
