"""Mixture of experts: routing, load balance, and training that does not depend on the layout."""

import re
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.marks import nightly_except
from tests.ranks import on_ranks
from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import expert_parallel_rules as rules

MODEL = Model(
    layers=2,
    hidden_size=16,
    ffn_hidden_size=24,
    heads=4,
    kv_heads=4,
    head_dim=4,
    experts=4,
    top_k=2,
    moe_ffn_hidden_size=8,
    dense_layers=1,
)
"""Seven tokens per micro-batch do not divide by the experts, so that ranks get unequal numbers."""
DEEPSEEK = replace(
    MODEL,
    router="sigmoid",
    load_balancing="bias",
    shared_experts=1,
    route_scale=2.5,
    n_group=2,
    topk_group=1,
    kv_lora_rank=6,
    q_lora_rank=10,
    qk_rope_head_dim=4,
    v_head_dim=3,
)


def a_job(model=MODEL, layout=None, **recipe):
    recipe = {"seq_len": 8, "tokens_per_step": 128, "micro_batch_size": 2, "learning_rate": 3e-3, **recipe}
    return Job(model=model, layout=layout or Layout(), recipe=Recipe(**recipe))


def a_router(**options):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.router import Router

    torch.manual_seed(0)
    router = Router(replace(MODEL, **options))
    with torch.no_grad():
        router.weight.normal_()
        if router.bias is not None:
            router.bias.zero_()
    return router


# Routing; the values of each way of it are in test_decoder.py


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_bias_changes_selection_but_not_gate_weights(kind):
    torch = pytest.importorskip("torch")
    router = a_router(router=kind, load_balancing="bias")
    x = torch.randn(50, 16)
    router.bias[3] = 100.0
    chosen, gates, counts = router(x)
    assert (chosen == 3).any(dim=1).all()
    assert counts[3] == 50
    assert int(counts.sum()) == 100
    scores = x @ router.weight.T
    scores = scores.softmax(1) if kind == "softmax" else scores.sigmoid()
    picked = scores.gather(1, chosen)
    assert torch.allclose(gates, picked / picked.sum(1, keepdim=True))


@pytest.mark.torch
def test_experts_are_selected_from_the_best_groups_only():
    torch = pytest.importorskip("torch")
    router = a_router(experts=12, n_group=4, topk_group=2, top_k=4, router="sigmoid")
    x = torch.randn(50, 16)
    chosen, _, _ = router(x)
    best = (x @ router.weight.T).sigmoid().unflatten(1, (4, 3)).topk(2, dim=2).values.sum(2).topk(2, dim=1).indices
    assert all(set((row // 3).tolist()) <= set(groups.tolist()) for row, groups in zip(chosen, best))


@pytest.mark.torch
@pytest.mark.parametrize("counts", [(3, 0, 5, 1), (0, 0, 0, 9), (9, 0, 0, 0), (0, 0, 0, 0)])
def test_each_expert_processes_its_own_tokens(counts):
    torch = pytest.importorskip("torch")
    import torch.nn.functional as F

    from trainyard.train.model.moe import Experts

    torch.manual_seed(0)
    experts = Experts(MODEL)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(sum(counts), 16, requires_grad=True)
    reference = torch.cat(
        [
            (F.silu(part @ experts.gate[e].T) * (part @ experts.up[e].T)) @ experts.down[e].T
            for e, part in enumerate(x.split(counts))
        ]
    )
    expected = torch.autograd.grad(reference.square().sum(), [x, *experts.parameters()])
    other = experts(x, torch.tensor(counts))
    grads = torch.autograd.grad(other.square().sum(), [x, *experts.parameters()])
    assert torch.allclose(reference, other, rtol=1e-4, atol=1e-4)
    for grad, right in zip(grads, expected):
        assert torch.allclose(grad, right, rtol=1e-4, atol=1e-3)


# Balance


@pytest.mark.torch
@given(counts=st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_bias_falls_above_the_mean_load_and_rises_below(counts):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.expert_balance import BIAS_RATE, update_bias

    bias = torch.zeros(len(counts))
    update_bias(bias, torch.tensor(counts))
    mean = sum(counts) / len(counts)
    expected = [BIAS_RATE * ((count < mean) - (count > mean)) for count in counts]
    assert bias.tolist() == pytest.approx(expected)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_bias_updates_balance_the_load(kind):
    torch = pytest.importorskip("torch")
    router = a_router(router=kind, load_balancing="bias")
    with torch.no_grad():
        router.weight *= 0.05
    x = torch.randn(100, 16)
    x += 5 * (router.weight[0] - router.weight[1:].mean(0)).detach()  # all like expert 0
    before = router(x)[2]
    for _ in range(150):
        router.load.last = router(x)[2]
        router.update_bias()
    after = router(x)[2]
    assert before.max() > 70
    assert after.max() < 55
    assert after.sum() == before.sum() == 200


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_balance_loss_changes_gradients_but_not_the_output(kind, share):
    """Gradients, but not outputs, include share * E * sum of (tokens' share * mean score) * weight."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.expert_balance import LOSS_WEIGHT

    with_it, without = a_router(router=kind, load_balancing="aux_loss"), a_router(router=kind)
    with_it.load.share = share
    x = torch.randn(50, 16)
    chosen, gates, _ = with_it(x)
    _, plain, _ = without(x)
    assert torch.equal(gates, plain)
    gates.square().sum().backward()
    scores = x @ without.weight.T
    scores = scores.softmax(1) if kind == "softmax" else scores.sigmoid() / scores.sigmoid().sum(1, keepdim=True)
    used = torch.tensor([float((chosen == e).sum()) for e in range(4)]) / 100
    (plain.square().sum() + share * LOSS_WEIGHT * 4 * (used * scores.mean(0)).sum()).backward()
    assert torch.allclose(with_it.weight.grad, without.weight.grad, rtol=1e-4, atol=1e-7)
    assert float(with_it.load.loss(torch.ones(8, 4), torch.full((4,), 4))) == pytest.approx(LOSS_WEIGHT)


@pytest.mark.torch
def test_tokens_are_counted_once_per_step():
    """However often a block runs forward, and only if there is a backward pass; also for the bias."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model import blocks, initial_weights
    from trainyard.train.model.language_task import Language

    results = []
    for activation_checkpoint in ("none", "full", "selective"):
        job = a_job(replace(MODEL, load_balancing="bias"), activation_checkpoint=activation_checkpoint)
        task = Language(job)
        decoder = task.module()
        blocks.prepare(task.blocks(decoder), job.recipe)
        initial_weights.fill(decoder, task)
        assert decoder.tokens_per_expert() == {}
        tokens = torch.arange(14).view(2, 7)
        with torch.no_grad():
            decoder(tokens)
        for part in (tokens, tokens + 1):
            task.loss(decoder(part), (part,)).backward()
        decoder.after_step()
        counts = {name: each.tolist() for name, each in decoder.tokens_per_expert().items()}
        results.append((counts, decoder.layers["1"].mlp.router.bias.tolist()))
    assert results[0] == results[1] == results[2]
    assert results[0][0].keys() == {"layers.1"}
    assert sum(results[0][0]["layers.1"]) == 2 * 14 * MODEL.top_k
    assert any(results[0][1])


# Spread over ranks


def _exchanged(ranks, tokens):
    """Differences of outputs and gradients of a rank's tokens, through the experts of two ranks and local ones."""
    import torch
    import torch.distributed as dist

    from trainyard.train.model.moe import Experts, run_locally
    from trainyard.train.parallel.expert_parallel import Exchange

    torch.manual_seed(0)
    whole = Experts(MODEL)
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    mine = Experts(replace(MODEL, experts=2))
    mine.load_state_dict({name: values.chunk(2)[ranks.rank] for name, values in whole.state_dict().items()})
    torch.manual_seed(ranks.rank)
    counts = torch.tensor(tokens[ranks.rank])
    x = torch.randn(int(counts.sum()), 16, requires_grad=True)
    tensors = []
    for dispatch, experts in ((Exchange(dist.group.WORLD), mine), (run_locally, whole)):
        y = dispatch(experts, x, counts)
        tensors += [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *experts.parameters()])]
    parts, wholes = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
    for number in (2, 3, 4):  # an expert's gradient is that of all ranks' tokens
        dist.all_reduce(wholes[number])
        wholes[number] = wholes[number].chunk(2)[ranks.rank]
    return [float(torch.dist(part, other) / (other.norm() + 1e-9)) for part, other in zip(parts, wholes)]


@pytest.mark.torch
@pytest.mark.parametrize(
    "tokens",
    [((2, 3, 1, 4), (1, 0, 6, 2)), ((0, 0, 3, 4), (0, 0, 1, 2)), ((0, 0, 0, 0), (5, 0, 0, 1)), ((0,) * 4, (0,) * 4)],
    ids=["uneven", "to one rank", "from one rank", "none"],
)
def test_tokens_return_from_experts_on_other_ranks(tokens):
    for errors in on_ranks(2, _exchanged, tokens):
        assert max(errors) < 1e-5


def _host_reads(ranks):
    """Number of copies of counts to the host in a forward and backward pass through experts of two ranks."""
    import torch
    import torch.distributed as dist

    from trainyard.train.model.moe import Experts
    from trainyard.train.parallel.expert_parallel import Exchange

    experts, reads = Experts(replace(MODEL, experts=2)), []
    for name in ("tolist", "item", "cpu"):
        read = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, lambda *given, read=read: reads.append(0) or read(*given))
    x = torch.randn(8, 16, requires_grad=True)
    Exchange(dist.group.WORLD)(experts, x, torch.full((4,), 2)).sum().backward()
    return len(reads)


@pytest.mark.torch
def test_counts_are_read_by_the_host_once():
    assert on_ranks(2, _host_reads) == [1, 1]


def _trained(ranks, job, steps):
    from trainyard import plugins

    training = plugins.load("workloads", job.workload).build(job, "cpu")
    outcomes = [training(step) for step in range(steps)]
    return outcomes, training.about()


@cache
def _alone(model, optimizer):
    """Outcomes and facts of a single rank."""
    return on_ranks(1, _trained, a_job(model, optimizer=optimizer), 3)[0]


SPREADS = {
    "fsdp, by bias": (replace(MODEL, load_balancing="bias"), Layout(dp_shard=2), {}),
    "ep, by loss": (
        replace(MODEL, load_balancing="aux_loss"),
        Layout(dp_shard=2, ep=2, zero=2),
        {"activation_checkpoint": "full"},
    ),
    "cp, by loss": (replace(MODEL, load_balancing="aux_loss"), Layout(cp=2, ep=2), {}),
    "ep of all": (replace(DEEPSEEK, load_balancing="aux_loss"), Layout(dp_shard=4, ep=4), {}),
    "ep in hsdp": (replace(MODEL, load_balancing="bias"), Layout(dp_replicate=2, dp_shard=2, ep=2), {}),
    "ep in stages": (
        replace(MODEL, load_balancing="aux_loss"),
        Layout(pp=2, dp_shard=2, ep=2),
        {"schedule": "1f1b", "activation_checkpoint": "selective"},
    ),
    "muon, fsdp": (MODEL, Layout(dp_shard=2), {"optimizer": "muon"}),
    "muon, ep in fsdp": (MODEL, Layout(dp_shard=4, ep=2), {"optimizer": "muon"}),
}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("spread", nightly_except(SPREADS, ["ep, by loss", "ep in stages"]))
def test_parallel_training_matches_one_rank(spread):
    """The same losses, gradient norms and exact token counts of each expert."""
    pytest.importorskip("torch")
    model, layout, recipe = SPREADS[spread]
    alone, known = _alone(model, recipe.get("optimizer", "adamw"))
    results = on_ranks(layout.ranks, _trained, a_job(model, layout, **recipe), 3)
    for outcomes, _ in results:
        assert outcomes == results[0][0]
        for outcome, other in zip(outcomes, alone):
            assert tuple(outcome) == pytest.approx(tuple(other), rel=1e-5)
    assert {layer: tokens for _, about in results for layer, tokens in about.experts.items()} == known.experts
    assert {sum(tokens) for tokens in known.experts.values()} == {128 * MODEL.top_k}
    assert {about.digests["weights_initial"] for _, about in results} == {known.digests["weights_initial"]}
    assert {about.parameters for _, about in results} == {known.parameters}


# Refusals


@pytest.mark.parametrize(
    ("model", "layout", "values"),
    [
        (replace(MODEL, experts=0, top_k=0), Layout(dp_shard=2, ep=2), ["ep = 2", "$.layout", "ep = 1"]),
        (
            MODEL,
            Layout(dp_shard=3, ep=3),
            ["experts 4 % ep 3 = 1", "ep = 1"],
        ),
        (MODEL, Layout(dp_shard=2, ep=4), ["dp_shard 2 * cp 1 = 2 ranks", "$.layout", "2 % ep 4 = 2", "ep = 2"]),
        (
            MODEL,
            Layout(ep=2),
            ["1 % ep 2 = 1", "ep = 1", "dp_shard = 2"],
        ),
        (
            replace(MODEL, moe_ffn_hidden_size=10),
            Layout(dp_shard=8, ep=2),
            ["moe_ffn_hidden_size 10 % 4 = 2", "$.model", "8 ranks", "ep 2", "moe_ffn_hidden_size = 12", "ep = 4"],
        ),
    ],
)
def test_refusal_shows_arithmetic_and_alternative(model, layout, values):
    with refused(BadJob, *values):
        rules.check(a_job(model, layout, tokens_per_step=16 * layout.batch_ranks))


@given(*(st.integers(1, 12) for _ in range(4)), *(st.sampled_from([4, 6, 10, 12, 16]) for _ in range(2)))
@example(4, 8, 1, 2, 16, 10)
def test_suggested_ep_is_valid(experts, shard, cp, ep, width, ffn):
    """Reasons are resolved one at a time: with a valid number of experts, their rows may still not divide."""
    model = replace(MODEL, experts=experts, top_k=1, hidden_size=width, moe_ffn_hidden_size=ffn)

    def reason(ep):
        try:
            rules.check(a_job(model, Layout(dp_shard=shard, cp=cp, ep=ep), tokens_per_step=16 * shard))
        except BadJob as error:
            return str(error)
        return ""

    if message := reason(ep):
        advised = int(re.search(r"Use (?:\w+ = \d+, or )?ep = (\d+)", message)[1])
        again = reason(advised)
        assert not again or (
            again.startswith(("hidden_size", "moe_ffn_hidden_size"))
            and not message.startswith(("hidden_size", "moe_ffn_hidden_size"))
        )
