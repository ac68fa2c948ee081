"""All-gather of tensors with one owner each: every rank ends up with the owners' values, in few collectives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.ranks import on_ranks  # noqa: E402
from trainyard.train.parallel import all_gather_parts as module  # noqa: E402

pytestmark = pytest.mark.torch
PARTS = {
    "equal parts": [[(3, 4), (2,)], [(14,)]],
    "padded part": [[(50, 2)], [(49, 2)]],
    "one part is longer": [[(64,), (3,)], [(5, 2)]],
    "an empty part": [[(4, 5)], []],
    "an empty first part": [[], [(4, 5), (1,)]],
    "nothing": [[], []],
    "channels last": [[(2, 3, 2, 2)], [(3, 4, 2, 1)]],
}
WORLD = 2


def tensors_of(parts, rank):
    """Tensors by owner: their numbers for the owner, -1 for others, as parameters of channels-last layout if 4-d."""
    generator = torch.Generator().manual_seed(3)
    result = []
    for owner, shapes in enumerate(parts):
        values = [torch.randn(shape, generator=generator) for shape in shapes]
        values = [
            value.contiguous(memory_format=torch.channels_last) if value.dim() == 4 else value for value in values
        ]
        values = [value if owner == rank else torch.full_like(value, -1) for value in values]
        result.append([torch.nn.Parameter(value) for value in values])
    return result


def gather_all(ranks, bucket_elements):
    """By case: the number of collectives, and whether all values are the owners'."""
    import torch.distributed as dist

    module.BUCKET_ELEMENTS = bucket_elements
    called = []
    for holder, name in ((module, "all_gather"), (dist, "broadcast")):
        call = getattr(holder, name)
        setattr(holder, name, lambda *args, call=call, **options: (called.append(call), call(*args, **options))[1])
    results = {}
    for case, parts in PARTS.items():
        called.clear()
        tensors = tensors_of(parts, ranks.rank)
        with torch.no_grad():
            module.all_gather_parts(tensors, dist.group.WORLD)
        expected = [tensors_of(parts, owner)[owner] for owner in range(WORLD)]
        same = [torch.equal(a, b) for own, other in zip(tensors, expected) for a, b in zip(own, other, strict=True)]
        results[case] = len(called), all(same)
    return results


@pytest.mark.slow
def test_every_rank_gets_the_owners_values_in_few_collectives():
    for results in on_ranks(WORLD, gather_all, 1 << 25):
        assert {case for case, (_, same) in results.items() if not same} == set()
        calls = {case: number for case, (number, _) in results.items()}
        assert calls == {
            "equal parts": 1,
            "padded part": 1,
            "one part is longer": 3,
            "an empty part": 1,
            "an empty first part": 2,
            "nothing": 0,
            "channels last": 1,
        }


@pytest.mark.slow
@pytest.mark.parametrize("bucket_elements", [2, 10])
def test_buckets_that_cut_tensors_give_the_same_values(bucket_elements):
    for results in on_ranks(WORLD, gather_all, bucket_elements):
        assert {case for case, (_, same) in results.items() if not same} == set()


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=64))
def test_little_more_than_the_elements_is_sent(lengths):
    gathered = module.gathered_length(tuple(lengths))
    sent = len(lengths) * gathered + sum(max(0, length - gathered) for length in lengths)
    assert sum(lengths) <= sent <= 1.05 * sum(lengths)
    assert gathered >= min(lengths)
