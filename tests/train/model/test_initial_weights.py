"""Every rank of every layout draws its part of the same model, and a restart draws nothing."""

import pytest

from tests.train.model.test_draw_shard import fake_ranks
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe

pytestmark = pytest.mark.torch

DENSE = Model(layers=4, hidden_size=24, ffn_hidden_size=40, heads=4, kv_heads=2, head_dim=8, vocab=258)
MOE = Model(
    layers=2, hidden_size=24, ffn_hidden_size=40, heads=4, kv_heads=4, head_dim=8, vocab=256,
    experts=4, top_k=2, moe_ffn_hidden_size=20, shared_experts=1, load_balancing="bias", router="sigmoid",
)  # fmt: skip
LATENT = Model(
    layers=2, hidden_size=24, ffn_hidden_size=40, heads=4, kv_heads=4, head_dim=8, vocab=256,
    q_lora_rank=12, kv_lora_rank=8, qk_rope_head_dim=4, v_head_dim=8,
)  # fmt: skip
LAYOUTS = {
    "ddp": (DENSE, Layout(dp_replicate=2)),
    "zero1": (DENSE, Layout(dp_shard=2, zero=1)),
    "fsdp, uneven": (DENSE, Layout(dp_shard=5)),
    "fsdp, more ranks than rows": (DENSE, Layout(dp_shard=32)),
    "hsdp": (DENSE, Layout(dp_replicate=2, dp_shard=3)),
    "tp": (DENSE, Layout(tp=2, sequence_parallel=True, loss_parallel=True)),
    "tp x fsdp, uneven": (DENSE, Layout(tp=2, dp_shard=5)),
    "tp x hsdp": (DENSE, Layout(tp=2, dp_shard=2, dp_replicate=2)),
    "cp x fsdp": (DENSE, Layout(cp=2, dp_shard=2)),
    "pp": (DENSE, Layout(pp=2, interleave=2)),
    "pp x tp x fsdp": (DENSE, Layout(pp=2, tp=2, dp_shard=3)),
    "ep": (MOE, Layout(dp_shard=2, ep=2)),
    "ep x fsdp": (MOE, Layout(dp_shard=8, ep=2)),
    "ep x hsdp": (MOE, Layout(dp_shard=4, ep=2, dp_replicate=2)),
    "latent attention": (LATENT, Layout(dp_shard=4)),
}


def a_job(model, layout):
    schedule = {"schedule": "interleaved_1f1b" if layout.interleave > 1 else "1f1b"} if layout.pp > 1 else {}
    recipe = Recipe(seq_len=16, tokens_per_step=16 * 960, micro_batch_size=1, seed=7, **schedule)
    return Job(model=model, layout=layout, recipe=recipe)


def model_of(job, task, rank, **given):
    import torch

    from trainyard.train.parallel.parallelize import ParallelModel
    from trainyard.train.process_group import Ranks

    return ParallelModel(job, Ranks(rank, 0, job.layout.ranks, 1, "cpu", torch.device("cpu")), task, **given)


def state_of(model):
    """Name to value of parameters and persistent buffers of this rank."""
    return {name: value for module in model.modules for name, value in module.state_dict(keep_vars=True).items()}


def ranks_to_test(layout):
    """At most 12 ranks, the first and last included."""
    return sorted({round(index * (layout.ranks - 1) / 11) for index in range(12)})


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_rank_draws_its_part_of_the_model(name):
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor import DTensor, distribute_tensor

    from trainyard.train.model.language_task import Language

    model, layout = LAYOUTS[name]
    alone = state_of(model_of(job := a_job(model, Layout()), Language(job), 0))
    job, drawn = a_job(model, layout), set()
    for rank in ranks_to_test(layout):
        with fake_ranks(rank, layout.ranks), torch.no_grad():
            for parameter, value in state_of(model_of(job, Language(job), rank)).items():
                expected = alone[parameter].detach()
                if isinstance(value, DTensor):
                    assert value.shape == expected.shape
                    expected = distribute_tensor(
                        expected, value.device_mesh, value.placements, src_data_rank=None
                    ).to_local()
                    value = value.to_local()
                assert torch.equal(value, expected), (rank, parameter)
                drawn.add(parameter)
    assert drawn == alone.keys()


@pytest.mark.parametrize(("tables", "ranks"), [("by_row", 3), ("by_table", 2)])
def test_sharded_embedding_tables_are_those_of_one_rank(tables, ranks):
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor import DTensor, distribute_tensor

    from trainyard.train.recommender.recommender_sizes import Dlrm
    from trainyard.train.recommender.recommender_task import Predict

    def sizes(tables):
        return Dlrm(
            rows=[10, 7, 2], hots=[1, 2, 1], dense=4, width=4, bottom=[8, 4], top=[8, 1], cross_layers=1, cross_rank=2,
            tables=tables,
        )  # fmt: skip

    def job(layout):
        return Job(workload="recommender", layout=layout, recipe=Recipe(tokens_per_step=12, seed=7))

    alone = state_of(model_of(job(Layout()), Predict(job(Layout()), sizes("replicated")), 0))
    drawn = set()
    for rank in range(ranks):
        layout = Layout(dp_replicate=ranks)
        task = Predict(job(layout), sizes(tables))
        with fake_ranks(rank, ranks), torch.no_grad():
            for name, value in state_of(model_of(job(layout), task, rank)).items():
                expected = alone[name].detach()
                if isinstance(value, DTensor):
                    expected = distribute_tensor(expected, value.device_mesh, value.placements, src_data_rank=None)
                    value, expected = value.to_local(), expected.to_local()
                assert torch.equal(value, expected), (rank, name)
                drawn.add(name)
    assert drawn == alone.keys()


def test_offloaded_weights_equal_those_on_the_device():
    torch = pytest.importorskip("torch")
    from trainyard.train.model.language_task import Language
    from trainyard.train.parallel.parallelize import initialize

    task, states = Language(a_job(DENSE, Layout())), []
    for offload in (False, True):
        with torch.device("meta"):
            module = task.module()
        initialize(module, task, torch.device("cpu"), offload)
        states.append(module.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_skipped_weights_are_zero_until_they_are_drawn():
    torch = pytest.importorskip("torch")
    from trainyard.train.model import initial_weights
    from trainyard.train.model.language_task import Language

    job = a_job(MOE, Layout())
    expected = state_of(model_of(job, Language(job), 0))
    with initial_weights.skipped():
        model = model_of(job, Language(job), 0)
    assert not any(value.any() for value in state_of(model).values())
    model.draw_weights()
    assert all(torch.equal(value, expected[name]) for name, value in state_of(model).items())


@pytest.mark.device
def test_an_accelerator_draws_the_bits_of_the_cpu():
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal, Uniform
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import LogicalShard

    indices = [torch.arange(3, 700), torch.arange(129, 3001)]
    for distribution in (Normal(0.02), Normal(0.02, 2.0), Uniform(0.1)):
        values = {}
        for device in ("cpu", "cuda"):
            values[device] = torch.empty(697, 2872, device=device)
            draw(values[device], LogicalShard((800, 4096), indices), distribution, 7, "w", torch.device(device))
        assert torch.equal(values["cuda"].cpu(), values["cpu"]), distribution
