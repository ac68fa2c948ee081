"""Optimizers against reference implementations, and ZeRO-1 against torch's and an unsharded one."""

import multiprocessing
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.counted import a_job as preset_job
from tests.ranks import PRELOAD
from tests.refused import refused
from tests.train.language_model import small_job, train
from trainyard import plugins
from trainyard.errors import BadJob
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import data_parallel_rules, optimizer_rules, trainable

MODEL = Model(layers=2, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
a_job = partial(small_job, MODEL)


def matrices(seed, steps=3, shape=(6, 10)):
    """A weight and its gradients, float32."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(steps + 1)]


def steps_of(optimizer, parameter, grads):
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
    return parameter.detach()


# Against oracles


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_matches_torch(shape, nesterov):
    """In bfloat16, as torch's iteration; with the update scaling that both support."""
    torch = pytest.importorskip("torch")
    from trainyard.train.optimizers.matrix_optimizers import Orthogonal

    start, *grads = matrices(1, shape=shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    given = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.2}
    recipe = Recipe(tokens_per_step=1, learning_rate=0.1, dtype="bfloat16", **given)
    oracle = torch.optim.Muon([theirs], lr=0.1, adjust_lr_fn="match_rms_adamw", **given)
    got = steps_of(Orthogonal([("layers.0.w", ours)], recipe), ours, grads)
    assert torch.equal(got, steps_of(oracle, theirs, grads))
    assert not torch.allclose(got, start, atol=0.05)


@pytest.mark.torch
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 8), st.integers(1, 8))
def test_muon_updates_each_expert_as_a_matrix(seed, experts, rows, columns):
    torch = pytest.importorskip("torch")
    start, *grads = matrices(seed, shape=(experts, rows, columns))
    recipe = Recipe(tokens_per_step=1, learning_rate=0.1, optimizer="muon")
    make = plugins.load("optimizers", "muon").make
    stack = torch.nn.Parameter(start.clone())
    got = steps_of(make([("layers.0.mlp.experts.up", stack)], recipe), stack, grads)
    for expert in range(experts):
        matrix = torch.nn.Parameter(start[expert].clone())
        alone = make([("layers.0.mlp.up.weight", matrix)], recipe)
        assert torch.allclose(got[expert], steps_of(alone, matrix, [grad[expert] for grad in grads]), atol=1e-5)


@pytest.mark.torch
@given(st.integers(0, 10**6), st.floats(0, 0.9), st.booleans(), st.sampled_from([None, 0.0, 0.01]))
def test_sgd_matches_torch(seed, momentum, nesterov, decay):
    torch = pytest.importorskip("torch")
    start, *grads = matrices(seed, shape=(3, 4))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    nesterov = nesterov and momentum > 0
    recipe = Recipe(
        tokens_per_step=1, learning_rate=0.1, optimizer="sgd", momentum=momentum, nesterov=nesterov, weight_decay=decay
    )
    optimizer = plugins.load("optimizers", "sgd").make([("layers.0.w", ours)], recipe)
    oracle = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay or 0.0)
    assert torch.equal(steps_of(optimizer, ours, grads), steps_of(oracle, theirs, grads))
    state = sum(value.numel() for value in optimizer.state[ours].values() if isinstance(value, torch.Tensor))
    assert state == ours.numel() * recipe.state_values, "no state without momentum"


@pytest.mark.torch
@given(st.floats(0, 0.99), st.floats(0, 0.999), st.floats(1e-8, 1e-3), st.floats(0, 0.5))
def test_adamw_takes_its_numbers_from_the_recipe(beta1, beta2, eps, decay):
    torch = pytest.importorskip("torch")
    start, *grads = matrices(4, shape=(3, 4))
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    recipe = Recipe(tokens_per_step=1, learning_rate=0.1, beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay)
    optimizer = plugins.load("optimizers", "adamw").make([("layers.0.w", ours)], recipe)
    oracle = torch.optim.AdamW([theirs], lr=0.1, betas=(beta1, beta2), eps=eps, weight_decay=decay, foreach=False)
    assert torch.equal(steps_of(optimizer, ours, grads), steps_of(oracle, theirs, grads))


# Weight decay

KINDS = {
    "transformer": {"embedding": ["embed.weight"], "norm": ["layers.0.attention_norm.weight", "norm.weight"],
                    "bias": ["layers.0.attention.q.bias"],
                    "matrix": ["layers.0.mlp.router.weight", "layers.0.mlp.experts.up", "head.weight"]},
    "tiny-vit": {"embedding": ["class_token", "position"], "norm": ["norm.bias", "layers.0.mlp_norm.weight"],
                 "bias": ["head.bias", "patches.bias"], "matrix": ["patches.weight", "layers.0.mlp.up.weight"]},
    "tiny-resnet": {"norm": ["norm.weight", "layers.0_0.norm1.bias", "layers.0_0.skip_norm.weight"],
                    "bias": ["head.bias"], "matrix": ["conv.weight", "layers.0_0.conv2.weight"]},
    "tiny-unet": {"norm": ["norm.bias", "middle.spatial.norm.weight"], "bias": ["first.bias"],
                  "matrix": ["first.weight"]},
    "tiny-dlrm": {"embedding": ["embed.0.weight"], "bias": ["top.0.bias"], "matrix": ["top.0.weight"]},
}  # fmt: skip


def model_of(name):
    """A model on the meta device: of a preset, or the decoder with biases and experts."""
    torch = pytest.importorskip("torch")
    from trainyard.train.diffusion import diffusion_sizes
    from trainyard.train.diffusion.diffusion_task import Denoise
    from trainyard.train.model.language_task import Language
    from trainyard.train.recommender.recommender_sizes import Dlrm
    from trainyard.train.recommender.recommender_task import Predict
    from trainyard.train.sizes import convert
    from trainyard.train.vision import vision_sizes
    from trainyard.train.vision.vision_task import Classify

    if name == "transformer":
        experts = replace(MODEL, experts=4, top_k=2, moe_ffn_hidden_size=16, bias="qkv", norm="layer")
        task = Language(small_job(experts))
    else:
        job = preset_job(name)
        kinds = {"vision": vision_sizes.KINDS, "diffusion": diffusion_sizes.KINDS}.get(job.workload, (Dlrm,))
        tasks = {"vision": Classify, "diffusion": Denoise, "recommender": Predict}
        task = tasks[job.workload](job, convert(job, *kinds))
    with torch.device("meta"):
        return task.module()


@pytest.mark.torch
@pytest.mark.parametrize("name", KINDS)
def test_parameters_of_every_model_have_a_kind(name):
    pytest.importorskip("torch")
    from trainyard.train.optimizers.parameter_groups import kind_of

    named = dict(model_of(name).named_parameters())
    for kind, parameters in KINDS[name].items():
        assert [kind_of(parameter, named[parameter]) for parameter in parameters] == [kind] * len(parameters)
    assert all(kind_of(*pair) == "matrix" or pair[1].dim() < 3 for pair in named.items())
    assert all(kind_of(*pair) != "matrix" or pair[1].dim() > 1 for pair in named.items())


@pytest.mark.torch
@given(st.sets(st.sampled_from(["norm", "bias", "embedding"])), st.sampled_from(["adamw", "sgd", "muon", "shampoo"]))
def test_weight_decay_applies_to_all_other_parameters(exempt, name):
    pytest.importorskip("torch")
    from trainyard.train.optimizers.parameter_groups import kind_of

    named = dict(model_of("transformer").named_parameters())
    recipe = Recipe(tokens_per_step=1, weight_decay=0.3, no_weight_decay=tuple(exempt), optimizer=name)
    optimizer = plugins.load("optimizers", name).make(list(named.items()), recipe)
    decay = {id(parameter): group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert [decay[id(value)] for value in named.values()] == [
        0.0 if kind_of(*pair) in exempt else 0.3 for pair in named.items()
    ]


@pytest.mark.torch
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_orthogonal_keeps_singular_vectors_and_equalizes_values(seed, rows, columns):
    torch = pytest.importorskip("torch")
    from trainyard.train.optimizers.matrix_optimizers import orthogonal

    (matrix,) = matrices(seed, steps=0, shape=(rows, columns))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    along = u.T @ orthogonal(matrix, torch.float32) @ v.T  # diagonal: the same singular vectors
    lengths = along.diagonal()
    assert torch.allclose(along, torch.diag(lengths), atol=1e-3)
    seen = s / s.norm() > 0.05  # smaller ones are not all the way there after five iterations
    assert ((lengths[seen] > 0.5) & (lengths[seen] < 1.35)).all()


@pytest.mark.torch
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5))
def test_shampoo_matches_the_explicit_kronecker_product(seed, rows, columns):
    """(L x R)^(-1/4) on the matrix as one long vector (Gupta et al. 2018, lemma 4 and algorithm 1)."""
    torch = pytest.importorskip("torch")
    from trainyard.train.optimizers.matrix_optimizers import EPSILON, Kronecker

    start, *grads = matrices(seed, shape=(rows, columns))
    parameter = torch.nn.Parameter(start.clone())
    recipe = Recipe(tokens_per_step=1, learning_rate=0.1)
    got = steps_of(Kronecker([("layers.0.w", parameter)], recipe), parameter, grads).double().numpy()

    weight = start.double().numpy().reshape(-1)
    left, right = EPSILON * np.eye(rows), EPSILON * np.eye(columns)
    for grad in (grad.double().numpy() for grad in grads):
        left, right = left + grad @ grad.T, right + grad.T @ grad
        values, vectors = np.linalg.eigh(np.kron(left, right))
        root = vectors @ np.diag(np.clip(values, EPSILON**2, None) ** -0.25) @ vectors.T
        weight = weight - 0.1 * root @ grad.reshape(-1)
    # float32 sums of G G^T hold their smallest eigenvalues to 1e-7 of the largest: to 1e-1 of EPSILON.
    assert np.allclose(got.reshape(-1), weight, atol=3e-3)


@pytest.mark.torch
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_inverse_fourth_root_inverts_its_fourth_power(seed, size):
    torch = pytest.importorskip("torch")
    from trainyard.train.optimizers.matrix_optimizers import inverse_fourth_root

    (square,) = matrices(seed, steps=0, shape=(size, size))
    matrix = (square @ square.T + torch.eye(size)).double()
    root = inverse_fourth_root(matrix)
    assert torch.allclose(torch.linalg.matrix_power(root, 4) @ matrix, torch.eye(size, dtype=torch.float64), atol=1e-6)


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", ["muon", "shampoo"])
def test_parameters_outside_layer_matrices_get_adamw(optimizer):
    torch = pytest.importorskip("torch")
    start, *grads = matrices(2, shape=(4, 4))
    recipe = Recipe(tokens_per_step=1, learning_rate=0.1)

    def moved(plugin, name):
        parameter = torch.nn.Parameter(start.clone())
        return steps_of(plugins.load("optimizers", plugin).make([(name, parameter)], recipe), parameter, grads)

    for name in ("embed.weight", "head.weight", "position.weight"):
        assert torch.equal(moved(optimizer, name), moved("adamw", name)), name
    matrix = "layers.0.mlp.up.weight"
    assert not torch.allclose(moved(optimizer, matrix), moved("adamw", matrix), atol=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_update_implementations_give_the_same_losses(text, optimizer):
    results = [
        train(a_job(text, optimizer=optimizer, optimizer_implementation=update))
        for update in ("fused", "foreach", "for-loop")
    ]
    for other in results[1:]:
        assert np.allclose(results[0], other, rtol=1e-5, atol=0)


# ZeRO-1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8), st.randoms(use_true_random=False))
def test_zero_1_assigns_whole_parameters_evenly(sizes, ranks, shuffle):
    torch = pytest.importorskip("torch")
    from trainyard.train.parallel.zero import divide

    named = [(f"p{number}", torch.empty(size, device="meta")) for number, size in enumerate(sizes)]
    parts = divide(named, ranks)
    assert sorted(name for part in parts for name, _ in part) == sorted(name for name, _ in named)
    loads = [sum(values.numel() for _, values in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes), "otherwise moving one parameter would balance them"
    again = list(named)
    shuffle.shuffle(again)
    assert [[name for name, _ in part] for part in divide(again, ranks)] == [
        [name for name, _ in part] for part in parts
    ]


def _zero_rank(rank, path, pipe):
    """One of two ranks: the same gradients through our ZeRO-1, torch's and an unsharded AdamW."""
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from trainyard.train.parallel.zero import Zero

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)

    def parameters():
        return [torch.nn.Parameter(values.clone()) for values in [*matrices(5, steps=2), *matrices(6, shape=(7,))]]

    first_copy, second_copy, third_copy, fourth_copy = (parameters() for _ in range(4))
    named = [(f"p{number}", parameter) for number, parameter in enumerate(first_copy)]
    ours = Zero(named, dist.group.WORLD, lambda own: torch.optim.AdamW([p for _, p in own], lr=0.1))
    theirs = ZeroRedundancyOptimizer(second_copy, torch.optim.AdamW, lr=0.1)
    whole = torch.optim.AdamW(third_copy, lr=0.1)
    unshared = Zero(
        [("p", fourth_copy[0])], dist.group.WORLD, lambda own: torch.optim.AdamW([p for _, p in own], lr=0.1)
    )
    for step in range(3):
        for optimizer, those in (
            (ours, first_copy),
            (theirs, second_copy),
            (whole, third_copy),
            (unshared, fourth_copy[:1]),
        ):
            optimizer.zero_grad()
            for number, parameter in enumerate(those):
                assert parameter.grad is None
                parameter.grad = torch.full_like(parameter, 0.3 * (number + 1) * (step - 1.5))
            optimizer.step()
    kept = [name for name, parameter in named if parameter in ours.state]
    same = [torch.equal(a, c) and torch.equal(b, c) for a, b, c in zip(first_copy, second_copy, third_copy)]
    pipe.send((kept, all(same), torch.equal(fourth_copy[0], third_copy[0])))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.torch
@pytest.mark.slow
def test_zero_1_matches_torch_and_an_unsharded_optimizer(tmp_path):
    pytest.importorskip("torch")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    given = [(rank, str(tmp_path / "meet"), pipes[rank][1]) for rank in range(2)]
    processes = [context.Process(target=_zero_rank, args=each, daemon=True) for each in given]
    for process in processes:
        process.start()
    assert all(reading.poll(240) for reading, _ in pipes)
    results = [reading.recv() for reading, _ in pipes]
    for process in processes:
        process.join(60)
    for _, same, unshared in results:
        assert same
        assert unshared, "a rank that owns nothing gets the others' values all the same"
    (first, _, _), (second, _, _) = results
    assert sorted(first + second) == [f"p{number}" for number in range(7)], "each state has one owner"
    assert first
    assert second


# On any layout


# Refusals


@pytest.mark.parametrize(
    ("recipe", "values"),
    [
        ({"momentum": 0.9}, ["momentum = 0.9", "'adamw'", "beta1"]),
        ({"optimizer": "shampoo", "nesterov": True}, ["nesterov = true", "'shampoo'"]),
        ({"optimizer": "sgd", "momentum": 0.0, "nesterov": True}, ["nesterov = true", "momentum = 0"]),
        ({"lr_decay_style": "wsd"}, ["lr_decay_style = 'wsd'", "decay_steps = 0"]),
        ({"lr_decay_style": "linear"}, ["lr_decay_style = 'linear'", "decay_steps = 0"]),
        ({"lr_decay_style": "step"}, ["lr_decay_style = 'step'", "lr_step_size = 0"]),
        ({"lr_decay_style": "constant", "decay_steps": 9}, ["decay_steps = 9", "'constant'"]),
        ({"stable_steps": 9}, ["stable_steps = 9", "'cosine'"]),
        ({"label_smoothing": 0.1}, ["label_smoothing = 0.1", "'transformer'", "vision"]),
    ],
)
def test_contradicting_optimizer_settings_are_refused(recipe, values):
    with refused(BadJob, "$.recipe", *values):
        trainable.check(a_job(**recipe))


@pytest.mark.parametrize(
    ("field", "value"),
    [("beta1", 1.0), ("beta2", -0.1), ("eps", -1.0), ("momentum", 1.0), ("weight_decay", float("inf")),
     ("max_norm", -1.0), ("label_smoothing", 1.0), ("min_lr_factor", 1.1), ("lr_gamma", float("nan"))],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(field, value):
    with refused(BadJob, f"{field} = {value}"):
        Recipe(tokens_per_step=1, **{field: value})


def test_an_unknown_optimizer_is_refused_with_the_nearest():
    with refused(BadJob, "optimizer = 'adam'", "$.recipe", "'adamw'"):
        trainable.check(a_job(optimizer="adam"))


def test_fused_sgd_refuses_sharded_weights():
    with refused(BadJob, "dp_shard 2", "optimizer_implementation = 'auto'", "'foreach'"):
        trainable.check(a_job(optimizer="sgd", optimizer_implementation="fused", spread=Layout(dp_shard=2)))
    trainable.check(a_job(optimizer="sgd", optimizer_implementation="foreach", spread=Layout(dp_shard=2)))
    trainable.check(a_job(optimizer="sgd", spread=Layout(dp_replicate=2)))
    trainable.check(a_job(optimizer="sgd", spread=Layout(dp_shard=2, zero=1)))


@given(
    st.sampled_from(["adamw", "sgd", "muon", "shampoo"]),
    st.sampled_from([{"dp_shard": 2}, {"tp": 2}, {"dp_replicate": 2}, {"dp_shard": 2, "zero": 1}, {}]),
)
def test_automatic_update_is_supported(name, spread):
    job = a_job(optimizer=name, spread=Layout(**spread))
    trainable.check(job)
    settled = optimizer_rules.update_implementation(job.recipe, job.layout)
    trainable.check(a_job(optimizer=name, optimizer_implementation=settled, spread=job.layout))
    assert settled == ("foreach" if name == "sgd" and spread in ({"dp_shard": 2}, {"tp": 2}) else "fused")
    assert (
        optimizer_rules.update_implementation(a_job(optimizer_implementation="for-loop").recipe, job.layout)
        == "for-loop"
    )


@given(st.sampled_from(["tp", "cp", "pp"]))
def test_zero_1_with_split_weights_suggests_zero_2(axis):
    spread = Layout(dp_shard=2, zero=1, **{axis: 2})
    with refused(BadJob, f"zero = 1 with {axis} = 2", "$.layout", f"zero = 2: dp_shard 2 x {axis} 2, ZeRO-2"):
        data_parallel_rules.check(a_job(spread=spread))
    data_parallel_rules.check(a_job(spread=Layout(dp_shard=2, zero=2, **{axis: 2})))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"])
def test_resharding_in_pipelines_needs_one_stage_per_rank(schedule):
    job = a_job(spread=Layout(dp_shard=2, pp=2, reshard_after_forward="always"), schedule=schedule)
    if schedule in ("gpipe", "1f1b"):
        data_parallel_rules.check(job)
    else:
        with refused(BadJob, "reshard_after_forward = 'always'", f"schedule = {schedule!r}", "'1f1b'"):
            data_parallel_rules.check(job)


def test_resharding_needs_zero_3():
    for zero in (1, 2):
        with refused(BadJob, "reshard_after_forward = 'always'", f"zero = {zero}", "zero = 3"):
            data_parallel_rules.check(a_job(spread=Layout(dp_shard=2, zero=zero, reshard_after_forward="always")))


@given(*[st.integers(1, 2)] * 5, st.sampled_from([1, 2, 3]))
def test_weights_are_replicated_or_sharded_if_ranks_have_other_samples(dp_replicate, dp_shard, tp, cp, pp, zero):
    spread = Layout(dp_replicate=dp_replicate, dp_shard=dp_shard, tp=tp, cp=cp, pp=pp, zero=zero)
    assert data_parallel_rules.replicates(spread) + data_parallel_rules.shards(spread) == (
        dp_replicate * dp_shard * cp > 1
    )
    if data_parallel_rules.replicates(spread):
        assert spread.ranks == dp_replicate * dp_shard
