"""Summaries of tensors: of whole tensors and of shards, in every dtype and memory format."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import torch  # noqa: E402
from hypothesis import assume, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tests.numerics.record import brute_force  # noqa: E402
from tests.numerics.record.tensors import DTYPES, FLOATS, cut, divisions, flat_divisions, tensors  # noqa: E402
from trainyard.errors import BadInput  # noqa: E402
from trainyard.numerics.record import summarise as module  # noqa: E402
from trainyard.numerics.record.positional_hash import combined_hash  # noqa: E402
from trainyard.numerics.record.sketch import PERIOD, SIGNS  # noqa: E402
from trainyard.numerics.record.summarise import Summary, summarise  # noqa: E402
from trainyard.numerics.tensor_record import NonFinite, Shard, sample_positions  # noqa: E402


def sketch(summary: Summary) -> np.ndarray:
    return np.frombuffer(summary.sketch, "<f8")


def sample(summary: Summary) -> list[float]:
    return np.frombuffer(summary.sample, "<f8").tolist()


def as_numbers(tensor: Tensor) -> list[float]:
    """The elements in logical order; complex ones as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.to(torch.float64).flatten().tolist()


def as_lanes(tensor: Tensor) -> list[int]:
    """The bits in logical order: signed integers of at most 32 bits, unsigned ones of 8."""
    stored = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    size = min(4, (torch.view_as_real(tensor) if tensor.is_complex() else tensor).element_size())
    return stored.view({1: "u1", 2: "<i2", 4: "<i4"}[size]).tolist()


@given(tensor=tensors())
def test_a_summary_is_that_of_brute_force(tensor: Tensor) -> None:
    summary, numbers = summarise(tensor), as_numbers(tensor)
    finite = [number if np.isfinite(number) else 0.0 for number in numbers]
    assert summary.shape == tuple(tensor.shape)
    assert f"torch.{summary.dtype}" == str(tensor.dtype)
    assert summary.shard is None
    assert int(summary.hash, 16) == brute_force.hash_of(enumerate(as_lanes(tensor)))
    assert sketch(summary) == pytest.approx(brute_force.sketch(enumerate(numbers)), rel=1e-12, abs=1e-12)
    assert summary.norm == pytest.approx(np.linalg.norm(finite), rel=1e-12)
    assert summary.maximum == max(map(abs, finite), default=0)
    assert summary.mean == pytest.approx(sum(finite) / (tensor.numel() or 1), rel=1e-9, abs=1e-9)
    assert sample(summary) == [finite[at] for at in sample_positions(len(finite))]


@given(data=st.data())
def test_summaries_of_shards_add_up_to_that_of_the_tensor(data: st.DataObject) -> None:
    tensor = data.draw(tensors(min_dims=1))
    shape = tuple(tensor.shape)
    flat = data.draw(st.booleans())
    shards = flat_divisions(shape, data.draw(st.integers(1, 5))) if flat else data.draw(divisions(shape))
    parts = [
        summarise(cut(tensor.reshape(-1) if flat else tensor, shard), shard=shard, shape=shape) for shard in shards
    ]
    whole = summarise(tensor)
    assert combined_hash(part.hash for part in parts) == whole.hash
    assert sum(map(sketch, parts)) == pytest.approx(sketch(whole), rel=1e-12, abs=1e-10)
    assert sum(part.norm**2 for part in parts) == pytest.approx(whole.norm**2, rel=1e-12)
    assert max(part.maximum for part in parts) == whole.maximum
    assert sum(part.mean for part in parts) == pytest.approx(whole.mean, rel=1e-9, abs=1e-9)
    assert sorted(number for part in parts for number in sample(part)) == sorted(sample(whole))
    assert {(part.shape, part.shard) for part in parts} == {(shape, shard) for shard in shards}


@given(data=st.data())
def test_sketches_of_partial_sums_add_up(data: st.DataObject) -> None:
    parts = [torch.randn(data.draw(st.integers(1, 300)), dtype=torch.float64)]
    parts.append(torch.randn_like(parts[0]))
    shape = tuple(parts[0].shape)
    shard = Shard(offset=(0,), shape=shape, partial=True)
    total = sum(sketch(summarise(part, shard=shard, shape=shape)) for part in parts)
    assert total == pytest.approx(sketch(summarise(parts[0] + parts[1])), abs=1e-12)


@given(
    first=st.sampled_from([SIGNS, PERIOD, 3 * PERIOD, 2**16, 2**17, 2**33 + 5]).flatmap(
        lambda edge: st.integers(edge - 200, edge)
    ),
    size=st.integers(1, 400),
    columns=st.sampled_from([1, 7]),
)
def test_shards_far_inside_a_large_tensor(first: int, size: int, columns: int) -> None:
    shape = (2**34, 10)
    rows = first // 10
    shard = Shard(offset=(rows, 2), shape=(size, columns))
    values = torch.randn(size, columns, dtype=torch.float64)
    indices = [(rows + row) * 10 + 2 + column for row in range(size) for column in range(columns)]
    for summary, at in (
        (summarise(values, shard=shard, shape=shape), indices),
        (
            summarise(values.view(-1), shard=Shard(offset=(first,), shape=(values.numel(),)), shape=shape),
            range(first, first + values.numel()),
        ),
    ):
        lanes = [2 * index + half for index in at for half in (0, 1)]
        assert sketch(summary) == pytest.approx(brute_force.sketch(zip(at, as_numbers(values))), abs=1e-12)
        assert int(summary.hash, 16) == brute_force.hash_of(zip(lanes, as_lanes(values)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128, torch.bool], ids=str)
def test_memory_format_and_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 7, 101, 103).to(dtype)
    expected = summarise(tensor)
    for other in (
        tensor.to(memory_format=torch.channels_last),
        tensor.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    ):
        assert not other.is_contiguous()
        assert summarise(other) == expected
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert summarise(tensor) == expected
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 16, 1 << 21])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_chunks_change_only_the_rounding(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(7, 30_001).to(dtype)
    shard = Shard(offset=(0, 5), shape=(7, 29_996))
    expected = [summarise(tensor), summarise(cut(tensor, shard), shard=shard, shape=(7, 30_001))]
    monkeypatch.setattr(module, "CPU_CHUNK", chunk)
    actual = [summarise(tensor), summarise(cut(tensor, shard), shard=shard, shape=(7, 30_001))]
    for chunked, other in zip(actual, expected):
        assert (chunked.hash, chunked.sample, chunked.maximum) == (other.hash, other.sample, other.maximum)
        assert sketch(chunked) == pytest.approx(sketch(other), rel=1e-12, abs=1e-10)
        assert chunked.norm == pytest.approx(other.norm, rel=1e-14)


@pytest.mark.parametrize(
    ("shape", "columns"), [((40, 9_000), (7, 5_000)), ((3, 200_000), (1_000, 150_000)), ((500, 300), (299, 300))]
)
def test_blocks_of_columns_add_up(shape: tuple[int, int], columns: tuple[int, int]) -> None:
    tensor = torch.randn(shape, dtype=torch.float64)
    bounds = [(0, columns[0]), columns, (columns[1], shape[1])]
    shards = [Shard(offset=(0, first), shape=(shape[0], last - first)) for first, last in bounds]
    parts = [summarise(cut(tensor, shard), shard=shard, shape=shape) for shard in shards]
    assert combined_hash(part.hash for part in parts) == summarise(tensor).hash
    assert sum(map(sketch, parts)) == pytest.approx(sketch(summarise(tensor)), abs=1e-9)


@given(
    counts=st.tuples(*[st.integers(0, 5)] * 3),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]),
    seed=st.integers(0, 99),
)
def test_non_finite_elements_are_counted_as_zeros(counts: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(200, generator=generator)
    clean = values.clone()
    positions = torch.randperm(200, generator=generator)[: sum(counts)]
    values[positions] = torch.tensor([nan] * counts[0] + [inf] * counts[1] + [-inf] * counts[2])
    clean[positions] = 0
    summary, expected = summarise(values.to(dtype)), summarise(clean.to(dtype))
    assert summary.nonfinite == (
        NonFinite(nan=counts[0], positive=counts[1], negative=counts[2]) if any(counts) else None
    )
    assert summary._replace(nonfinite=None, hash="") == expected._replace(hash="")
    assert (summary.hash == expected.hash) == (not any(counts))


@given(dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99), bit=st.integers(0, 63), at=st.integers(0, 499))
def test_one_flipped_bit_changes_the_hash(dtype: torch.dtype, seed: int, bit: int, at: int) -> None:
    assume(dtype != torch.bool)
    tensor = torch.randn(500, generator=torch.Generator().manual_seed(seed)).to(dtype)
    flipped = tensor.clone()
    flipped.view(torch.uint8)[at * dtype.itemsize + bit // 8 % dtype.itemsize] ^= 1 << bit % 8
    assert summarise(flipped).hash != summarise(tensor).hash


@given(dtype=st.sampled_from(FLOATS[:4]), data=st.data())
def test_permutations_and_sign_flips_are_seen(dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.arange(1.0, 301).div(16).to(dtype).unique()
    count = len(tensor)
    positions = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=8, unique=True))
    flipped, moved = tensor.clone(), tensor.clone()
    flipped[positions] *= -1
    moved[positions] = tensor[positions[1:] + positions[:1]]
    whole = summarise(tensor)
    for other in (flipped, moved):
        assert summarise(other).hash != whole.hash
    assert not np.array_equal(sketch(summarise(flipped)), sketch(whole))
    assert (summarise(flipped).norm, summarise(flipped).maximum) == (whole.norm, whole.maximum)


def test_signs_of_zeros_and_payloads_of_nan_are_bits() -> None:
    assert summarise(torch.tensor([0.0])).hash != summarise(torch.tensor([-0.0])).hash
    payloads = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert summarise(payloads[:1]).hash != summarise(payloads[1:]).hash


def test_conjugate_and_negative_views_are_resolved() -> None:
    values = torch.randn(50, dtype=torch.complex64)
    assert values.conj().is_conj()
    assert summarise(values.conj()) == summarise(values.conj().resolve_conj())
    assert values.conj().imag.is_neg()
    assert summarise(values.conj().imag) == summarise(values.conj().imag.resolve_neg())


@pytest.mark.parametrize("scale", [1e308, 1e200])
def test_overflow_gives_finite_numbers(scale: float) -> None:
    summary = summarise(torch.full((1000,), scale, dtype=torch.float64))
    assert summary.nonfinite is None
    assert np.isfinite([summary.norm, summary.mean, summary.maximum, *sketch(summary), *sample(summary)]).all()
    assert summary.maximum == scale


def unreadable() -> dict[str, Tensor]:
    with FakeTensorMode():
        fake = torch.zeros(2, 3)
    return {"meta": torch.zeros(2, 3, device="meta"), "fake": fake, "sparse": torch.eye(2, 3).to_sparse()}


@pytest.mark.parametrize("kind", ["meta", "fake", "sparse"])
def test_tensors_without_readable_values_are_skipped(kind: str) -> None:
    assert summarise(unreadable()[kind]) == Summary((2, 3), "float32")


def test_gradients_are_not_tracked() -> None:
    weight = torch.randn(5, requires_grad=True)
    assert summarise(weight) == summarise(weight.detach())


@pytest.mark.parametrize(
    ("shape", "shard"),
    [
        ((4, 4), None),
        ((4, 3), Shard(offset=(0, 0), shape=(4, 3))),
        ((4, 4), Shard(offset=(3, 0), shape=(2, 3))),
        ((4, 4), Shard(offset=(-1, 0), shape=(2, 3))),
        ((4, 4), Shard(offset=(11,), shape=(6,))),
        ((4, 4), Shard(offset=(0, 0, 0), shape=(1, 2, 3))),
    ],
)
def test_shards_that_do_not_fit_are_refused(shape: tuple[int, ...], shard: Shard | None) -> None:
    with pytest.raises(BadInput):
        summarise(torch.zeros(2, 3), shard=shard, shape=shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_a_single_element_with_a_stride_is_hashed(dtype: torch.dtype) -> None:
    """torch takes a tensor of one element for contiguous, whatever its stride is."""
    values = torch.tensor([3, 4, 5, 6]).to(dtype)[::2][1:]
    assert values.stride(-1) == 2
    assert summarise(values).hash == summarise(torch.tensor([5]).to(dtype)).hash
