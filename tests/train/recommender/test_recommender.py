"""The recommender: FLOPs match torch, steps do not depend on the layout of tables and matrices, and clicks are a
function of (seed, step, index)."""

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counted import a_job, counted, expected, train
from tests.ranks import on_ranks
from tests.refused import refused
from trainyard import plugins
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.train.recommender import clicks
from trainyard.train.recommender.recommender_sizes import assign_tables
from trainyard.workloads.ops import recommender_ops

TINY, FULL = "tiny-dlrm", "dlrm-dcnv2"
ROWS, WIDTH = 204_184_588, 128
MATRICES = 16_044_545
"""Parameters of MLPerf's model without its tables."""
KINDS = ("replicated", "by_row", "by_table")


def parts(job):
    from trainyard.train.recommender.recommender_task import Clicks, Predict

    sizes = recommender_ops.check(job)
    return Predict(job, sizes), Clicks(job, sizes)


def table_job(tables, layout=None, **recipe):
    return a_job(TINY, layout, {"tables": tables}, **recipe)


# Sizes


def test_full_size_is_that_of_mlperf():
    sizes = recommender_ops.check(a_job(FULL))
    assert (len(sizes.rows), sum(sizes.rows), sizes.ids, sizes.features) == (26, ROWS, 214, 27 * WIDTH)
    job = a_job(FULL)
    assert recommender_ops.tally(sizes, job.recipe).parameters == ROWS * WIDTH + MATRICES


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"hots": [1, 1]}, ["2 hots", "$.sizes.hots", "6 tables", "$.sizes.rows"]),
        ({"rows": []}, ["rows = []", "$.sizes.rows"]),
        ({"rows": [100, 7, 0, 3, 53, 400]}, ["rows = [100, 7, 0, 3, 53, 400]", "$.sizes.rows", 1]),
        ({"bottom": [32, 8]}, ["bottom = [32, 8]", "$.sizes.bottom", 16]),
        ({"top": [32]}, ["top = [32]", "$.sizes.top", 1]),
        ({"skew": -1.0}, ["skew = -1.0", "$.sizes.skew", 0]),
        ({"tables": "by_column"}, ["'by_column'", "'replicated', 'by_row', 'by_table'", "$.sizes.tables"]),
        ({"row": [3]}, ["'row'", "$.sizes.row", "'rows'"]),
    ],
)
def test_impossible_sizes_name_the_key_and_the_next_step(change, values):
    with refused(BadJob, *values):
        recommender_ops.check(a_job(TINY, sizes=change))


@pytest.mark.parametrize(
    ("job", "values"),
    [
        (a_job(TINY, dataset="python"), ["dataset = 'python'", "$.recipe.dataset", "dataset = 'synthetic'"]),
        (a_job(TINY, dataset="clicks/"), ["dataset = 'clicks/'", "$.recipe.dataset", "recommender's"]),
        (a_job(TINY, seq_len=4), ["seq_len = 4", "$.recipe.seq_len", "seq_len = 1 and tokens_per_step = 4"]),
        (a_job(TINY, dtype="float8"), ["dtype = 'float8'", "$.recipe", "dtype = 'bfloat16'"]),
        (a_job(TINY, Layout(tp=2)), ["$.layout", "tp = 2", "dp_replicate, dp_shard", "2 ranks, dp_shard 2"]),
        (a_job(TINY, Layout(pp=2)), ["$.layout", "pp = 2", "dp_replicate, dp_shard", "2 ranks, dp_shard 2"]),
        (table_job("by_row", Layout(dp_shard=2, zero=1)), ["tables = 'by_row'", "zero = 1", "$.layout", "zero = 2"]),
        (
            table_job("by_row", Layout(dp_shard=2), offload=True),
            ["tables = 'by_row'", "$.sizes.tables", "offload = true", "offload = false"],
        ),
        (
            table_job("by_table", Layout(dp_shard=8), tokens_per_step=32),
            ["tables = 'by_table'", "6 tables", "8 ranks", "tables = 'by_row'"],
        ),
    ],
)
def test_refusal_names_a_valid_alternative(job, values):
    with refused(BadJob, *values):
        plugins.load("workloads", "recommender").expect(job)


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=30), st.integers(1, 30))
def test_tables_are_assigned_evenly(rows, ranks):
    shares = assign_tables(rows, ranks)
    assert sorted(table for share in shares for table in share) == list(range(len(rows)))
    assert all(shares) == (ranks <= len(rows))
    held = [sum(rows[table] for table in share) for share in shares]
    assert max(held) - min(held) <= max(rows)


# Arithmetic


@settings(max_examples=25)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([Layout(dp_replicate=2), Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)]),
    st.sampled_from([2, 4]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_any_split_has_the_same_arithmetic(tables, layout, micro_batch_size, activation_checkpoint):
    split = table_job(tables, layout, micro_batch_size=micro_batch_size, activation_checkpoint=activation_checkpoint)
    alone = table_job(tables, micro_batch_size=16, activation_checkpoint=activation_checkpoint)
    assert {op: flops * layout.ranks for op, flops in expected(split).items()} == expected(alone)
    assert recommender_ops.model_flops(split) == recommender_ops.model_flops(alone)
    assert layout.ranks * added(split) == added(alone)


def added(job):
    """FLOPs of summing rows, and of adding to their gradients."""
    return sum(o.flops for o in recommender_ops.operations(job) if o.op == "embedding")


def of_op(job, op):
    return sum(o.bytes for o in recommender_ops.operations(job) if o.op == op)


def test_sharded_tables_are_updated_by_their_owner():
    """Matrices are negligible in MLPerf's model: each of 8 ranks updates an eighth of the parameters."""
    layout = Layout(dp_replicate=8)
    job = {kind: a_job(FULL, layout, {"tables": kind}, tokens_per_step=64, micro_batch_size=8) for kind in KINDS}
    for kind in ("by_row", "by_table"):
        for op in ("optimizer", "embedding"):
            assert 8 * of_op(job[kind], op) == pytest.approx(of_op(job["replicated"], op), rel=0.01)


def test_lookup_reads_each_row_once():
    """A sample of MLPerf's model has 214 ids of 8 bytes, as many rows of 512 bytes, and 26 sums."""
    forward = next(o for o in recommender_ops.operations(a_job(FULL)) if (o.op, o.phase) == ("embedding", "forward"))
    assert forward.bytes == 16 * (214 * (8 + 512) + 26 * 512)
    assert forward.flops == 16 * 214 * 128
    assert forward.count == 4 * 26


def meta_batch(job):
    torch = pytest.importorskip("torch")
    sizes, samples = recommender_ops.check(job), job.batch
    dense = torch.empty(samples, sizes.dense, device="meta")
    ids = torch.zeros(samples, sizes.ids, dtype=torch.long, device="meta")
    return (dense, ids), (torch.zeros(samples, device="meta"),)


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["none", "full", "selective"])
@pytest.mark.parametrize("preset", [TINY, FULL])
def test_flops_match_torch(preset, activation_checkpoint):
    job = a_job(preset, micro_batch_size=16, activation_checkpoint=activation_checkpoint)
    flops, parameters = counted(parts(job)[0], *meta_batch(job), job.recipe)
    assert flops == expected(job)
    assert parameters == recommender_ops.tally(recommender_ops.check(job), job.recipe).parameters


# Clicks


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 8))
def test_samples_are_a_function_of_seed_step_and_index(seed, step, first, ranks):
    planted = clicks.Planted(recommender_ops.check(a_job(TINY)), seed)
    whole = planted.batch(step, range(first, first + 2 * ranks))
    shares = [planted.batch(step, range(first + 2 * rank, first + 2 * rank + 2)) for rank in range(ranks)]
    for joined, part in zip(map(np.concatenate, zip(*shares)), whole):
        assert np.array_equal(joined, part)
    assert not np.array_equal(whole.dense, planted.batch(step + 1, range(first, first + 2 * ranks)).dense)
    assert len({row.tobytes() for row in whole.dense}) == 2 * ranks
    assert np.all((whole.ids >= 0) & (whole.ids < planted.rows_I))
    assert set(whole.clicks) <= {0.0, 1.0}


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.05, 2.0])
def test_ids_follow_zipfs_law(skew):
    drawn = (np.arange(200_000) + 0.5) / 200_000
    ranks = clicks.zipf(drawn, np.full(1, 1000), skew)
    assert ranks.min() == 0
    assert clicks.zipf(np.array([0.0, 1.0]), np.full(1, 1000), skew).tolist() == [0, 999]
    for hot in (1, 10, 100):
        assert np.mean(ranks < hot) == pytest.approx(clicks.hot_share(1000, skew, hot), rel=0.01, abs=1e-5)
    assert clicks.hot_share(1000, skew, 1000) == 1
    if skew == 0:
        assert clicks.hot_share(1000, skew, 10) == pytest.approx(0.01)


def test_hot_rows_are_spread_by_a_permutation():
    planted = clicks.Planted(recommender_ops.check(a_job(TINY)), 7)
    for rows, turn in zip(planted.rows_I, planted.strides_I):
        assert len(set(np.arange(rows) * turn % rows)) == rows
    ids = planted.batch(0, range(2000)).ids[:, 4:9]  # of the table with 1000 rows
    halves = np.histogram(ids, bins=[0, 500, 1000])[0] / ids.size
    assert min(halves) > 0.2, "divided by row, every rank has rows that are asked for"


def test_features_are_normal_and_clicks_are_predictable():
    planted = clicks.Planted(recommender_ops.check(a_job(TINY)), 7)
    batch = planted.batch(3, range(4000))
    assert np.allclose(batch.dense.mean(0), 0, atol=0.1)
    assert np.allclose(batch.dense.std(0), 1, atol=0.1)
    results = batch.dense @ planted.weights_F > 0
    assert np.mean(results == batch.clicks) > 0.6


# The model


@pytest.mark.torch
def test_model_matches_its_formula():
    """The formula of the papers in numpy, sample by sample."""
    pytest.importorskip("torch")
    job = a_job(TINY, tokens_per_step=4)
    task, samples = parts(job)
    trainer = train(job, task, samples, steps=1)[1]
    model = trainer.parallel_model.call
    w = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    batch = samples.batch(1, range(4))
    sizes = task.sizes
    for sample, logit in enumerate(model(*batch.inputs).detach().numpy()):
        x, ids = (part[sample].numpy() for part in batch.inputs)
        for layer in range(len(sizes.bottom)):
            x = np.maximum(0, w[f"bottom.{layer}.weight"] @ x + w[f"bottom.{layer}.bias"])
        sums = [w[f"embed.{t}.weight"][own].sum(0) for t, own in enumerate(np.split(ids, np.cumsum(sizes.hots)[:-1]))]
        first = x = np.concatenate([x, *sums])
        for layer in range(sizes.cross_layers):
            down, up = w[f"cross.{layer}.down.weight"], w[f"cross.{layer}.up.weight"]
            x = first * (up @ (down @ x) + w[f"cross.{layer}.up.bias"]) + x
        for layer in range(len(sizes.top)):
            x = w[f"top.{layer}.weight"] @ x + w[f"top.{layer}.bias"]
            x = x if layer == len(sizes.top) - 1 else np.maximum(0, x)
        assert logit == pytest.approx(x[0], rel=1e-4, abs=1e-6)


@pytest.mark.torch
def test_loss_falls():
    job = a_job(TINY, tokens_per_step=512, micro_batch_size=512)
    outcomes, trainer = train(job, *parts(job), steps=40)
    losses = [outcome.loss for outcome in outcomes]
    assert losses[0] == pytest.approx(np.log(2), rel=0.01), "an untrained model knows nothing"
    assert np.mean(losses[-5:]) < 0.5
    assert "70.5% of the largest table's are of its 100 hottest rows" in trainer.about().text


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["full", "selective"])
def test_recomputation_changes_nothing(activation_checkpoint):
    plain = train(a_job(TINY), *parts(a_job(TINY)), steps=3)[0]
    job = a_job(TINY, activation_checkpoint=activation_checkpoint)
    assert np.allclose(plain, train(job, *parts(job), steps=3)[0], rtol=1e-6, atol=0)


# The step


@cache
def alone(**recipe):
    job = a_job(TINY, **recipe)
    pytest.importorskip("torch")
    return train(job, *parts(job), steps=3)[0]


def differs(job, **recipe):
    """The largest relative difference of losses and gradient norms to those of a single rank."""
    from trainyard.numerics.parity_trial import trial

    results = trial(job, 3).outcomes
    return max(abs(a - b) / abs(a) for first, second in zip(alone(**recipe), results) for a, b in zip(first, second))


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("tables", ["by_row", "by_table"])
def test_bfloat16_differs_by_rounding_only(tables):
    """Sums of rows are float32 in any layout; operands of products are rounded the same way."""
    job = table_job(tables, Layout(dp_replicate=2), dtype="bfloat16")
    assert differs(job, dtype="bfloat16") < 2e-3
    assert alone(dtype="bfloat16") != alone()


def several(ranks, folder, jobs):
    """Runs each job from the checkpoint of the previous one: (first step, losses and norms, digest and count of
    weights)."""
    from trainyard.train.checkpoint.checkpoint_saver import Saver

    results = []
    for until, job in jobs:
        training = plugins.load("workloads", "recommender").build(job, "cpu")
        digests = training.about().digests["weights_initial"], training.about().parameters
        saver = Saver(Path(folder), job, ranks, training)
        first = saver.resume()
        outcomes = []
        for step in range(first, until):
            outcomes.append(tuple(training(step)))
            saver.save_if_due(step)
        saver.close()
        results.append((first, outcomes, digests))
    return results


@pytest.mark.torch
@pytest.mark.slow
def test_checkpoint_resumes_under_another_table_layout(tmp_path):
    """Saved by table, loaded and saved by row, loaded by table and replicated: the same weights, names and losses."""
    pytest.importorskip("torch")
    every = {"interval": 1}
    jobs = [
        (until, msgspec.convert({**msgspec.to_builtins(table_job(tables, layout)), "checkpoint": every}, Job))
        for until, tables, layout in (
            (1, "by_table", Layout(dp_shard=2)),
            (2, "by_row", Layout(dp_replicate=2)),
            (3, "by_table", Layout(dp_replicate=2)),
            (4, "replicated", Layout(dp_shard=2)),
        )
    ]
    mine, others = on_ranks(2, several, str(tmp_path), jobs)
    assert mine == others
    job = a_job(TINY)
    unbroken, trainer = train(job, *parts(job), steps=4)
    digests = trainer.about().digests["weights_initial"], trainer.about().parameters
    for step, (first, outcomes, same) in enumerate(mine):
        assert first == step
        assert np.allclose(outcomes, [unbroken[step]], rtol=1e-5, atol=0)
        assert same == digests


def test_example_is_a_valid_job():
    from trainyard.job_file import load

    job = load(Path(__file__).parents[3] / "examples" / "dlrm.toml")
    assert recommender_ops.check(job).tables == "by_table"
    assert presets.load(TINY).workload == job.workload == "recommender"
    assert Job(workload="recommender", sizes=job.sizes, recipe=Recipe(tokens_per_step=1, dataset="synthetic"))
