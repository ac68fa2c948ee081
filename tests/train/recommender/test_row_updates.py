"""Row-wise AdaGrad of the recommender's tables: a step changes and costs the rows that it looked up, in any layout."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.counted import a_job, train
from tests.ranks import on_ranks
from tests.refused import refused
from tests.train.recommender.test_recommender import FULL, MATRICES, ROWS, TINY, parts, several
from trainyard import plugins
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.train.checkpoint.same_training import differences
from trainyard.train.recommender import clicks
from trainyard.train.rules import memory_rules
from trainyard.workloads.ops import recommender_ops

ROWWISE = {"embedding_optimizer": "rowwise_adagrad"}
STEPS = 3
ROW_UPDATES = ("index_add_", "index_put_", "_index_put_impl_")
"""Ops in place on the rows that an index selects."""


def row_job(tables="replicated", layout=None, sizes=None, **recipe):
    return a_job(TINY, layout, {"tables": tables, **(sizes or {})}, **{**ROWWISE, **recipe})


def checkpointed(job):
    return msgspec.convert({**msgspec.to_builtins(job), "checkpoint": {"interval": 1}}, Job)


@pytest.mark.parametrize(
    ("job", "values"),
    [
        (row_job(layout=Layout(dp_shard=2, zero=1)), ["$.recipe", "zero = 1", "tables = 'by_row'", "zero = 2"]),
        (row_job(layout=Layout(dp_shard=2)), ["'replicated'", "$.sizes.tables", "FSDP", "'by_row'", "dp_replicate"]),
        (row_job(no_weight_decay=("norm",)), ["weight decay", "'embedding'", "no_weight_decay"]),
    ],
)
def test_refusal_names_a_valid_alternative(job, values):
    with refused(BadJob, "embedding_optimizer = 'rowwise_adagrad'", *values):
        plugins.load("workloads", "recommender").expect(job)


def test_other_models_have_no_row_updates():
    with refused(BadJob, "embedding_optimizer = 'rowwise_adagrad'", "$.recipe", "'vision'", "'same'"):
        plugins.load("workloads", "vision").expect(a_job("tiny-vit", **ROWWISE))


def test_resume_needs_the_same_optimizer_of_tables():
    (difference,) = differences(a_job(TINY), row_job())
    assert "embedding_optimizer = 'rowwise_adagrad'" in difference


# Against a dense oracle


def dense_rowwise_adagrad(weight, row_sum, grad, rate, eps):
    """The update of all rows of a table from its dense gradient, in float64."""
    row_sum += (grad**2).mean(axis=1)
    weight -= rate * grad / (np.sqrt(row_sum) + eps)[:, None]


@pytest.mark.torch
@pytest.mark.parametrize("max_norm", [0.0, 0.05])
@pytest.mark.parametrize("micro_batch_size", [4, 16])
def test_update_matches_a_dense_oracle(max_norm, micro_batch_size, monkeypatch):
    """The dense gradients of the same model are clipped and applied in float64, step by step. 16 samples with 3 to 5
    ids of a table repeat ids within samples, between samples and between micro-batches."""
    torch = pytest.importorskip("torch")
    from trainyard.train.step import gradient_clipping

    recipe = {"max_norm": max_norm, "micro_batch_size": micro_batch_size, "lr_decay_style": "constant"}
    job, dense_job = row_job(**recipe), a_job(TINY, **recipe)
    trainer, dense = train(job, *parts(job), steps=0)[1], train(dense_job, *parts(dense_job), steps=0)[1]
    model, dense_model = trainer.parallel_model.modules[0], dense.parallel_model.modules[0]
    state = {name: np.zeros(len(w)) for name, w in model.named_parameters() if name.startswith("embed.")}
    for step in range(STEPS):
        dense_model.load_state_dict(model.state_dict())
        before = {name: dense_model.get_parameter(name).detach().double().numpy().copy() for name in state}
        dense._forward_backward(dense.batches(step))
        norm = gradient_clipping.total_norm(dense.parallel_model.parameters, None)
        factor = float(gradient_clipping.clip_factor(norm, max_norm))
        assert (factor < 1) == (max_norm > 0)
        outcome = trainer(step)
        assert outcome.grad_norm == pytest.approx(float(norm), rel=1e-5)
        for name, row_sum in state.items():
            grad = dense_model.get_parameter(name).grad.double().numpy() * factor
            dense_rowwise_adagrad(before[name], row_sum, grad, job.recipe.learning_rate, job.recipe.eps)
            weight = model.get_parameter(name)
            assert np.allclose(weight.detach().numpy(), before[name], rtol=1e-5, atol=1e-7)
            assert np.allclose(trainer.row_optimizer.state[weight]["row_sum"].numpy(), row_sum, rtol=1e-4, atol=0)
            untouched = ~grad.any(axis=1)
            assert torch.equal(weight[untouched], dense_model.get_parameter(name)[untouched])


@pytest.mark.torch
def test_repeated_rows_are_summed_before_the_update():
    """A row with gradients a and b gets the update of a + b, not those of a and of b."""
    torch = pytest.importorskip("torch")
    from trainyard.train.optimizers.row_gradients import RowGradients
    from trainyard.train.optimizers.rowwise_adagrad import RowwiseAdagrad
    from trainyard.train.recommender.embeddings import Replicated

    job = row_job(sizes={"rows": [6], "hots": [3], "width": 16})
    tables = Replicated(parts(job)[0].sizes, torch.float32)
    weight = tables.table(0).weight
    torch.nn.init.normal_(weight)
    before = weight.detach().clone()
    optimizer = RowwiseAdagrad(RowGradients(tables), job.recipe)
    for ids, gradient in ((torch.tensor([[4, 1, 4]]), 1.0), (torch.tensor([[1, 1, 4]]), 2.0)):
        tables(ids).sum().mul(gradient).backward()
    optimizer.gradients.collect()
    ((_, ids, values),) = optimizer.gradients.by_table()
    assert ids.tolist() == [1, 4]
    assert values[:, 0].tolist() == [1 + 2 * 2, 2 * 1 + 2]
    optimizer.step()
    assert optimizer.state[weight]["row_sum"].tolist() == [0, 25, 0, 0, 16, 0]
    moved = (weight - before)[:, 0].tolist()
    assert moved == pytest.approx([0, -1e-2, 0, 0, -1e-2, 0], rel=1e-4)


@pytest.mark.torch
def test_step_touches_as_many_elements_of_larger_tables():
    """Counts the elements of the results of all ops of a step. With 100 times the rows and the same ids, a step has as
    many."""
    pytest.importorskip("torch")
    counts = {rows: step_elements(row_job(sizes=one_table(rows))) for rows in (10_000, 1_000_000)}
    assert counts[1_000_000] == counts[10_000] < 1_000_000
    assert step_elements(a_job(TINY, sizes=one_table(1_000_000))) > 16 * 1_000_000


def one_table(rows):
    return {"rows": [rows], "hots": [3]}


def step_elements(job):
    """Elements of the results of a step's ops, or of all operands of an op in place unless in `ROW_UPDATES`. Ids are
    the numbers below 10."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Count(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            results = op(*args, **(kwargs or {}))
            if not (op.is_view or op.overloadpacket.__name__ in ROW_UPDATES):
                tensors = tree_leaves(args if op._schema.is_mutable else results)
                self.elements += sum(map(elements, tensors))
            return results

    def elements(value):
        if not isinstance(value, torch.Tensor):
            return 0
        return value._nnz() * value.shape[-1] if value.is_sparse else value.numel()

    trainer = train(job, *parts(job), steps=0)[1]
    batch = trainer.batches(0)
    batch.inputs[1].copy_(torch.arange(batch.inputs[1].numel()).view_as(batch.inputs[1]) % 10)
    trainer.batches = type("Fixed", (), {"__call__": lambda _, step: batch, "prefetch": lambda _, step: None})()
    trainer(0)
    with Count() as count:
        trainer(1)
    return count.elements


@pytest.mark.torch
def test_float16_overflow_leaves_tables_unchanged():
    """A gradient of rows that is not finite makes the norm infinite: the scale shrinks, and nothing is updated."""
    torch = pytest.importorskip("torch")
    job = row_job(dtype="float16")
    trainer = train(job, *parts(job), steps=1)[1]
    weights = [weight.detach().clone() for weight in trainer.parallel_model.parameters]
    original = trainer.row_optimizer.gradients.collect

    def collect():
        original()
        trainer.row_optimizer.gradients.values[0, 0] = torch.inf

    trainer.row_optimizer.gradients.collect = collect
    assert trainer(1).grad_norm == np.inf
    assert all(map(torch.equal, weights, trainer.parallel_model.parameters))


@pytest.mark.torch
@pytest.mark.parametrize("table", [0, 3])
def test_non_finite_gradient_of_rows_is_named(table):
    """Only the gradients of a table's rows, after their reduction, are not finite: a repeated pass has finite ones."""
    torch = pytest.importorskip("torch")
    job = row_job(on_non_finite="skip")
    trainer = train(job, *parts(job), steps=1)[1]
    gradients, original, spoils = trainer.row_optimizer.gradients, trainer.row_optimizer.gradients.collect, [True]

    def collect():
        original()
        if spoils.pop():
            list(gradients.by_table())[table].values[1, :3] = torch.nan
        spoils.append(False)

    gradients.collect = collect
    trainer(1)
    assert trainer.fault.kind == "non_finite"
    values = list(gradients.by_table())[table].values
    tensor = trainer.find_non_finite(1)
    assert tensor.label == f"the gradient of embed.{table}.weight"
    assert (tensor.count, tensor.size) == (3, values.numel())


def gather_rows(ranks, lengths):
    """The gathered keys and values, and the reads of tensors that wait for the device, on this rank."""
    import torch

    from trainyard.train.optimizers.row_gradients import all_gather_unequal

    length = lengths[ranks.rank]
    keys = torch.arange(length) + 10 * ranks.rank
    waits = []
    methods = {name: getattr(torch.Tensor, name) for name in ("item", "tolist", "__int__", "__bool__", "__index__")}
    for name, method in methods.items():
        setattr(torch.Tensor, name, lambda self, name=name, method=method: (waits.append(name), method(self))[1])
    try:
        gathered = all_gather_unequal((keys, keys[:, None] * torch.ones(2)), torch.distributed.group.WORLD)
    finally:
        for name, method in methods.items():
            setattr(torch.Tensor, name, method)
    return [tensor.tolist() for tensor in gathered], waits


@pytest.mark.torch
@pytest.mark.parametrize("lengths", [(2, 3), (0, 2), (0, 0)])
def test_rows_of_unequal_ranks_are_gathered_with_one_wait(lengths):
    pytest.importorskip("torch")
    keys = [10 * rank + index for rank, length in enumerate(lengths) for index in range(length)]
    for gathered, waits in on_ranks(2, gather_rows, lengths):
        assert gathered == [keys, [[float(key)] * 2 for key in keys]]
        assert waits == ["tolist"]


# Planned state and traffic


def bytes_of(job, op):
    return sum(o.bytes for o in recommender_ops.operations(job) if o.op == op)


@pytest.mark.parametrize("skew", [0.0, 1.0, 1.05, 2.0])
@pytest.mark.parametrize("rows", [1, 50, 10_000])
@pytest.mark.parametrize("draws", [1, 100, 5_000])
def test_expected_distinct_rows_match_draws(skew, rows, draws):
    generator = np.random.default_rng(1)
    counts = [len(np.unique(clicks.zipf(generator.random((draws, 1)), np.full(1, rows), skew))) for _ in range(200)]
    assert clicks.expected_distinct(rows, skew, draws) == pytest.approx(np.mean(counts), rel=0.02)


@pytest.mark.parametrize("tables", ["by_row", "by_table", "replicated"])
def test_planned_state_is_one_value_per_row(tables):
    """MLPerf's model: 204 million rows of 128 values. AdamW has 256 values of state per row."""
    layout = Layout(dp_replicate=8)
    sharing = 1 if tables == "replicated" else 8
    plain = a_job(FULL, layout, {"tables": tables}, tokens_per_step=64, micro_batch_size=8)
    job = replace(plain, recipe=replace(plain.recipe, **ROWWISE))
    least, dense = (memory_rules.least(j, recommender_ops.weights(j)) for j in (job, plain))
    assert least.parameters == dense.parameters
    assert least.gradients == 4 * MATRICES
    assert least.state - 2 * 4 * MATRICES == 4 * -(-ROWS // sharing)


@pytest.mark.torch
def test_planned_memory_matches_the_trainer():
    """State and weights of a run on one rank."""
    pytest.importorskip("torch")
    job = row_job()
    trainer = train(job, *parts(job), steps=1)[1]
    least = memory_rules.least(job, recommender_ops.weights(job))
    state = sum(
        value.numel()
        for optimizer in trainer.optimizers()
        for values in optimizer.state.values()
        for key, value in values.items()
        if key != "step"
    )
    assert least.state == 4 * state
    assert least.parameters == 4 * sum(weight.numel() for weight in trainer.parallel_model.parameters)


def test_planned_update_touches_the_rows_of_a_step():
    """The planned bytes of the update, for the mean of rows that steps look up."""
    job, plain = row_job(tokens_per_step=64), a_job(TINY, tokens_per_step=64)
    sizes = recommender_ops.check(job)
    planted, width = clicks.Planted(sizes, 7), sizes.width
    rows = np.mean(
        [
            sum(
                len(np.unique(ids))
                for ids in np.split(planted.batch(step, range(64)).ids, np.cumsum(sizes.hots)[:-1], 1)
            )
            for step in range(50)
        ]
    )
    matrices = bytes_of(plain, "optimizer") - 7 * 4 * sum(sizes.rows) * width
    moved = 8 + 4 * (3 * width + 2)  # per row: its id, gradient, weights and accumulator
    assert bytes_of(job, "optimizer") - matrices == pytest.approx(rows * moved, rel=0.02)


def test_planned_traffic_does_not_grow_with_the_tables():
    """With 100 times the rows, a step of as many lookups touches at most as many rows as it looks up."""
    small, large = (row_job(sizes=one_table(rows), tokens_per_step=64) for rows in (100_000, 10_000_000))
    for op in ("optimizer", "embedding"):
        assert bytes_of(small, op) <= bytes_of(large, op) < 1.5 * bytes_of(small, op)


# Layouts


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "layout"),
    [
        ("replicated", Layout(dp_replicate=2)),
        ("replicated", Layout(dp_replicate=2, batch_shares=(3, 1))),
        ("by_row", Layout(dp_shard=2)),
        ("by_table", Layout(dp_replicate=2)),
        ("by_row", Layout(dp_replicate=2, dp_shard=2)),
    ],
)
def test_losses_and_norms_are_equal_in_any_layout(tables, layout):
    from trainyard.numerics.parity_trial import trial

    recipe = {"micro_batch_size": 2, "max_norm": 0.05}
    job = row_job(**recipe)
    alone = train(job, *parts(job), steps=STEPS)[0]
    assert np.allclose(trial(row_job(tables, layout, **recipe), STEPS).outcomes, alone, rtol=1e-5, atol=0)
    dense = train(a_job(TINY, **recipe), *parts(a_job(TINY, **recipe)), steps=STEPS)[0]
    assert not np.allclose(dense[1:], alone[1:], rtol=1e-5, atol=0)


@pytest.mark.torch
def test_resume_is_bit_exact(tmp_path):
    pytest.importorskip("torch")
    job = checkpointed(row_job())
    unbroken = train(job, *parts(job), steps=4)[0]
    ((first, *_), (second, outcomes, _)) = on_ranks(1, several, str(tmp_path), [(2, job), (4, job)])[0]
    assert (first, second) == (0, 2)
    assert outcomes == [tuple(outcome) for outcome in unbroken[2:]]


@pytest.mark.torch
@pytest.mark.slow
def test_checkpoint_resumes_under_another_table_layout(tmp_path):
    """The accumulators follow their rows: saved by table, then by row, then replicated."""
    pytest.importorskip("torch")
    jobs = [
        (until, checkpointed(row_job(tables, layout)))
        for until, tables, layout in (
            (1, "by_table", Layout(dp_shard=2)),
            (2, "by_row", Layout(dp_replicate=2)),
            (3, "replicated", Layout(dp_replicate=2)),
            (4, "by_row", Layout(dp_shard=2)),
        )
    ]
    mine, others = on_ranks(2, several, str(tmp_path), jobs)
    assert mine == others
    unbroken = train(row_job(), *parts(row_job()), steps=4)[0]
    for step, (first, outcomes, _) in enumerate(mine):
        assert first == step
        assert np.allclose(outcomes, [unbroken[step]], rtol=1e-5, atol=0)
