"""Batch shares: every sample once, the mean over samples, the fastest division, refusals. Losses: `test_parity.py`."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import batch_shares, job_file
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.predict.inputs import cases
from trainyard.recipe import Recipe
from trainyard.run.record.run_claims import matmul_flops
from trainyard.train.recommender import recommender_rules
from trainyard.train.recommender.recommender_sizes import Dlrm
from trainyard.train.rules import trainable

MODEL = Model(layers=1, hidden_size=8, ffn_hidden_size=8, heads=1, kv_heads=1, head_dim=8)
MOE = Model(
    layers=1,
    hidden_size=8,
    ffn_hidden_size=8,
    heads=1,
    kv_heads=1,
    head_dim=8,
    experts=2,
    top_k=1,
    moe_ffn_hidden_size=8,
)


def job_with(shares: tuple[int, ...], *, multiple: int = 1, model: Model = MODEL, **layout: Any) -> Job:
    """A job whose step is `multiple` times the least number of micro-batches, each of 2 samples of 4 tokens."""
    parallel = Layout(batch_shares=shares, **layout)
    tokens = 8 * sum(parallel.replica_shares) * multiple
    return Job(model=model, layout=parallel, recipe=Recipe(seq_len=4, micro_batch_size=2, tokens_per_step=tokens))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A job with any shares, over replicas and shards, with tp and cp, which do not divide the batch."""
    shares = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    group, shard = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    replicate = len(shares) * group
    return job_with(
        tuple(shares),
        multiple=draw(st.integers(1, 3)),
        dp_replicate=replicate,
        dp_shard=shard,
        tp=draw(st.sampled_from([1, 2])),
        cp=draw(st.sampled_from([1, 2])),
    )


@given(jobs())
def test_replicas_divide_the_samples_without_gap_or_overlap(job):
    parts = [job.replica_samples(rank) for rank in range(job.layout.batch_ranks)]
    assert [index for part in parts for index in part] == list(range(job.batch))
    assert [len(part) for part in parts] == [count * job.recipe.micro_batch_size for count in job.micro_batches]


@given(jobs())
def test_micro_batches_are_in_proportion_to_the_shares(job):
    shares, counts = job.layout.batch_shares, job.micro_batches
    group = len(counts) // len(shares)
    assert len({Fraction(count, shares[rank // group]) for rank, count in enumerate(counts)}) == 1
    assert sum(counts) * job.recipe.micro_batch_size == job.batch
    assert max(counts) == job.accumulate


@given(jobs(), st.randoms(use_true_random=False))
def test_mean_over_replicas_is_the_mean_over_micro_batches(job, random):
    losses = [[Fraction(random.randrange(100)) for _ in range(count)] for count in job.micro_batches]
    replica_losses = [sum(part) / Fraction(job.mean_micro_batches).limit_denominator(10**6) for part in losses]
    every_loss = [loss for part in losses for loss in part]
    assert sum(replica_losses) / len(replica_losses) == sum(every_loss) / len(every_loss)


@given(jobs())
def test_tokens_of_the_ranks_are_those_of_the_step(job):
    assert sum(job.rank_tokens(rank) for rank in range(job.layout.ranks)) == job.recipe.tokens_per_step
    with_one_replica = {rank: job.layout.batch_rank(rank) for rank in range(job.layout.ranks)}
    assert sorted(set(with_one_replica.values())) == list(range(job.layout.batch_ranks))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_equal_shares_are_no_shares(share, replicas, multiple):
    equal = job_with((share,) * replicas, multiple=multiple, dp_replicate=replicas)
    none = job_with((), multiple=multiple, dp_replicate=replicas)
    assert equal.micro_batches == none.micro_batches == (none.accumulate,) * replicas
    assert equal.mean_micro_batches == none.accumulate
    assert equal.layout.has_equal_shares
    assert str(equal.layout) == str(none.layout)


@given(jobs())
def test_work_of_a_rank_is_that_of_a_job_with_its_micro_batches(job):
    for count in set(job.micro_batches):
        equal = job.with_equal_shares(count)
        assert equal.micro_batches == (count,) * job.layout.batch_ranks
    if job.layout.tp == job.layout.cp == 1:
        none = job_with((), multiple=len(job.micro_batches), dp_replicate=job.layout.batch_ranks)
        per_sample = matmul_flops(none) * none.layout.batch_ranks / none.batch
        assert matmul_flops(job) * job.layout.batch_ranks == pytest.approx(per_sample * job.batch)


def test_shares_of_a_job_file_are_in_its_layout_name():
    text = job_file.write(job_with((6, 2), dp_replicate=4))
    job = job_file.parse(text, "job.toml")
    assert job.micro_batches == (3, 3, 1, 1)
    assert str(job.layout) == "dp_replicate 4, batch shares 3:1"


# The fastest division


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=3), st.integers(0, 5))
def test_fastest_division_is_that_of_an_exhaustive_search(rates, more):
    total = len(rates) + more
    counts = batch_shares.fastest(rates, total)
    assert sum(counts) == total
    divisions = (counts for counts in product(range(1, total + 1), repeat=len(rates)) if sum(counts) == total)
    best_s = min(max(count / rate for count, rate in zip(counts, rates)) for counts in divisions)
    assert max(count / rate for count, rate in zip(counts, rates)) == pytest.approx(best_s)


@pytest.mark.parametrize(
    ("rates", "shares"),
    [((1.0,), (1,)), ((2.0, 2.0), (1, 1)), ((3.0, 1.0), (3, 1)), ((2.2, 1.0), (7, 3)), ((3.01, 0.99), (3, 1))],
)
def test_suggested_shares_are_in_proportion_to_the_rates(rates, shares):
    assert batch_shares.suggest(rates) == shares


def test_fewer_micro_batches_than_replicas_are_refused():
    with refused(BadJob, "2 micro-batches", "3 replicas"):
        batch_shares.fastest([1.0] * 3, 2)


# Refusals


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 12))
def test_number_of_shares_divides_the_replicas(shares, replicas):
    if replicas % len(shares):
        with refused(BadJob, f"{len(shares)} items", replicas, f"{replicas % len(shares)}") as caught:
            Layout(dp_replicate=replicas, batch_shares=tuple(shares))
        assert all(replicas % int(count) == 0 for count in re.findall(r"\d+", caught.value.next_step))
    else:
        assert len(Layout(dp_replicate=replicas, batch_shares=tuple(shares)).replica_shares) == replicas


@pytest.mark.parametrize("share", [0, -1, 1 << 60])
def test_share_out_of_range_is_refused(share):
    with refused(BadJob, "batch_shares", f"{share:,}"):
        Layout(dp_replicate=2, batch_shares=(1, share))


@given(st.integers(1, 500))
def test_step_that_the_shares_do_not_divide_is_refused_with_arithmetic(tokens):
    layout = Layout(dp_replicate=4, batch_shares=(3, 1))
    recipe = Recipe(seq_len=4, micro_batch_size=2, tokens_per_step=tokens)
    if tokens % 64:
        with refused(BadJob, f"tokens_per_step {tokens}", "sum of the batch shares 8 = 64") as caught:
            Job(model=MODEL, layout=layout, recipe=recipe)
        [advised] = re.findall(r"\d+", caught.value.next_step)
        assert int(advised) % 64 == 0
    else:
        assert sum(Job(model=MODEL, layout=layout, recipe=recipe).micro_batches) * 8 == tokens


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"dp_replicate": 2, "pp": 2}, ["[3, 1]", "pp = 2"]),
        ({"dp_shard": 2}, ["[3, 1]", "2 ranks", "zero = 3"]),
        ({"dp_shard": 2, "ep": 2, "zero": 2}, ["[3, 1]", "2 ranks", "ep = 2"]),
    ],
)
def test_unequal_shares_of_ranks_that_meet_in_a_micro_batch_are_refused(changes, values):
    job = job_with((3, 1), multiple=4, model=MOE if "ep" in changes else MODEL, **changes)
    if job.layout.pp > 1:
        job = job_file.parse(
            job_file.write(job).replace('schedule = "none"', 'schedule = "gpipe"').replace("layers = 1", "layers = 2"),
            "job.toml",
        )
    with refused(BadJob, "$.layout", *values):
        trainable.check(job)


@pytest.mark.parametrize(
    "layout",
    [
        {"dp_replicate": 2},
        {"dp_shard": 2, "zero": 1},
        {"dp_shard": 2, "zero": 2},
        {"dp_shard": 2, "reshard_after_forward": "never"},
        {"dp_replicate": 2, "dp_shard": 2},
        {"dp_replicate": 2, "dp_shard": 2, "ep": 2},
    ],
)
def test_other_unequal_shares_are_trained(layout):
    trainable.check(job_with((3, 1), model=MOE if "ep" in layout else MODEL, **layout))


def test_sharded_tables_and_predictions_refuse_unequal_shares():
    sizes = Dlrm(
        dense=2, width=4, rows=[8, 8], hots=[1, 1], bottom=[4], cross_layers=1, cross_rank=2, top=[1], tables="by_row"
    )
    recipe = Recipe(tokens_per_step=8, dataset="synthetic")
    job = Job(workload="recommender", layout=Layout(dp_replicate=2, batch_shares=(3, 1)), recipe=recipe)
    with refused(BadJob, "tables = 'by_row'", "[3, 1]"):
        recommender_rules.check(job, sizes)
    with refused(BadJob, "[3, 1]", "$.layout"):
        cases.of_jobs([job_with((3, 1), dp_replicate=2)])
