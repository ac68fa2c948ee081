"""Precision, recomputation and compilation give the same training, up to the rounding of each format."""

import gc
import math
import multiprocessing
import shutil
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.marks import nightly
from tests.ranks import PRELOAD
from tests.refused import missing_values, refused
from tests.train.language_model import small_job, train, trainer_of
from trainyard.errors import BadJob, MissingLibrary, MissingProgram
from trainyard.layout import Layout
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import device_rules, trainable

MODEL = Model(layers=4, hidden_size=32, ffn_hidden_size=64, heads=4, kv_heads=2, head_dim=8)
STEPS = 4
a_job = partial(small_job, MODEL)


# Loss scaling


def a_scaling(dtype="float16", **spread):
    pytest.importorskip("torch")
    from trainyard.train.step.loss_scaling import LossScaling

    return LossScaling(a_job(dtype=dtype, spread=Layout(**spread)))


@pytest.mark.torch
@given(st.lists(st.sampled_from([1.0, float("inf"), float("nan")]), max_size=40))
def test_scale_halves_on_overflow_and_doubles_after_good_steps(norms):
    pytest.importorskip("torch")
    from trainyard.train.step import loss_scaling

    scaling, saved, patience = a_scaling(), loss_scaling.GROW_AFTER, 3
    loss_scaling.GROW_AFTER = patience
    try:
        expected, good = loss_scaling.START, 0
        for norm in norms:
            assert scaling.accept_step(math.isfinite(norm)) == (norm == 1.0)
            good = good + 1 if norm == 1.0 else 0
            expected *= 0.5 if norm != 1.0 else 2.0 if good and good % patience == 0 else 1.0
            expected = max(expected, loss_scaling.MINIMUM)
            assert scaling.scale == expected
        again = a_scaling()
        again.restore(scaling.state())
        for norm in (1.0,) * patience:
            assert scaling.accept_step(math.isfinite(norm)) == again.accept_step(math.isfinite(norm))
            assert scaling.state() == again.state()
    finally:
        loss_scaling.GROW_AFTER = saved


@pytest.mark.torch
def test_only_float16_is_scaled():
    for dtype in ("float32", "bfloat16", "float8"):
        scaling = a_scaling(dtype)
        assert scaling.accept_step(False)
        assert (scaling.factor, scaling.state()) == (1.0, {})


@pytest.mark.torch
@given(st.integers(1, 64), st.integers(1, 64))
def test_gradient_scale_does_not_depend_on_the_layout(replicate, shard):
    """A rank averages over its own samples: 1/n of them, so that each weighs n times as much."""
    ranks = replicate * shard
    recipe = {"tokens_per_step": 16 * 2 * ranks}
    pytest.importorskip("torch")
    from trainyard.train.step.loss_scaling import START, LossScaling

    spread = LossScaling(a_job(dtype="float16", spread=Layout(dp_replicate=replicate, dp_shard=shard), **recipe))
    assert spread.factor * ranks == pytest.approx(START)


@pytest.mark.torch
def test_overflowing_step_changes_only_the_scale(text, monkeypatch):
    torch = pytest.importorskip("torch")
    from trainyard.train.step import loss_scaling

    monkeypatch.setattr(loss_scaling, "START", 2.0**36)
    trainer = trainer_of(a_job(text, dtype="float16"))
    before = [parameter.detach().clone() for parameter in trainer.parallel_model.parameters]
    skipped = trainer(0)
    assert trainer.fault is None, "an overflow is not a fault"
    assert np.isinf(skipped.grad_norm)
    assert 5 < skipped.loss < 6
    assert trainer.scaling.scale == 2.0**35
    assert all(map(torch.equal, before, trainer.parallel_model.parameters))
    assert not trainer.optimizer.state
    taken = next(outcome for outcome in map(trainer, [0] * 36) if np.isfinite(outcome.grad_norm))
    assert taken.loss == skipped.loss
    assert not any(map(torch.equal, before, trainer.parallel_model.parameters))
    assert trainer.numbers()["scale"] == trainer.scaling.scale < 2.0**35


@pytest.mark.torch
def test_loss_scaling_prevents_gradient_underflow(text, monkeypatch):
    """Gradients are divided by a step's tokens, and float16 underflows below 6e-8. With a scale of 2^-12, this step's
    gradients are as small as the unscaled ones of a million tokens."""
    pytest.importorskip("torch")
    from trainyard.train.step import loss_scaling

    (whole,), (half,) = train(a_job(text), steps=1), train(a_job(text, dtype="float16"), steps=1)
    monkeypatch.setattr(loss_scaling, "START", 2.0**-12)
    (lost,) = train(a_job(text, dtype="float16"), steps=1)
    off, scaled_off = (abs(outcome.grad_norm / whole.grad_norm - 1) for outcome in (lost, half))
    assert scaled_off < 2e-4
    assert off > 3 * scaled_off, (off, scaled_off)


# Formats on layouts

NEAR_FLOAT32 = {"bfloat16": 5e-3, "float16": 3e-3, "float8": 2e-2}
"""Relative tolerances of the losses of a few steps and of the first step's norm. Later norms depend on diverged
weights."""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8"])
def test_each_format_is_close_to_float32_but_differs(text, dtype):
    if dtype == "float8":
        pytest.importorskip("torchao")
    pytest.importorskip("torch")
    alone, whole = np.array(train(a_job(text, dtype=dtype))), np.array(train(a_job(text)))
    assert np.allclose(alone[:, 0], whole[:, 0], rtol=NEAR_FLOAT32[dtype], atol=0)
    assert np.allclose(alone[0], whole[0], rtol=NEAR_FLOAT32[dtype], atol=0)
    assert not np.allclose(alone, whole, rtol=1e-6, atol=0), "it is another arithmetic"


@pytest.mark.torch
@pytest.mark.slow
def test_float8_applies_to_block_products_only():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from torchao.float8.float8_linear import Float8Linear

    model = trainer_of(a_job(dtype="float8")).parallel_model.modules[0]
    swapped = {name for name, part in model.named_modules() if isinstance(part, Float8Linear)}
    linear = {name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    assert linear - swapped == {"head"}
    plain = trainer_of(a_job()).parallel_model.modules[0]
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.torch
@pytest.mark.slow
def test_float8_skips_unsupported_widths_and_routers():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchao")
    from trainyard.train.step.float8 import fits

    with torch.device("meta"):
        assert fits(torch.nn.Linear(32, 48), "mlp.up")
        assert not fits(torch.nn.Linear(32, 40), "mlp.up")
        assert not fits(torch.nn.Linear(24, 32), "mlp.up")
        assert not fits(torch.nn.Linear(32, 48), "moe.router")
        assert not fits(torch.nn.LayerNorm(32), "norm")


# Recomputation

CHECKPOINTED = (
    {"activation_checkpoint": "none"},
    {"activation_checkpoint": "selective"},
    {"activation_checkpoint": "full", "activation_checkpoint_every": 2},
    {"activation_checkpoint": "full"},
)


@pytest.mark.torch
@pytest.mark.parametrize("recipe", CHECKPOINTED[1:], ids=str)
def test_recomputation_keeps_losses(text, recipe):
    assert train(a_job(text, **recipe)) == train(a_job(text))


def _saved_bytes_and_flops(recipe, text):
    """Bytes that the forward pass saves for the backward pass, and FLOPs of both."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    trainer = trainer_of(a_job(text, **recipe))
    batch = trainer.batches(0).split(trainer.job.accumulate)[0]
    gc.collect()  # the profile must not see the end of earlier trainers
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        outputs = trainer.parallel_model.call(*batch.inputs)
    kept = sum(event.self_cpu_memory_usage for event in seen.events())
    del outputs
    with FlopCounterMode(display=False) as flops:
        trainer.parallel_model.task.loss(trainer.parallel_model.call(*batch.inputs), batch.targets).backward()
    assert torch.is_grad_enabled()
    return kept, flops.get_total_flops()


@pytest.mark.torch
def test_recomputation_trades_memory_for_flops(text):
    nothing, op, every_second, full = (_saved_bytes_and_flops(recipe, text) for recipe in CHECKPOINTED)
    assert nothing[0] > op[0] > full[0] > 0
    assert nothing[0] > every_second[0] > full[0]
    assert full[0] < nothing[0] / 3
    assert op[1] == nothing[1], "no matrix product is computed twice"
    assert nothing[1] < every_second[1] < full[1]
    assert full[1] - nothing[1] == 2 * (every_second[1] - nothing[1]), "half the blocks"


# Compilation


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("recipe", [{}, nightly({"activation_checkpoint": "selective"})], ids=str)
def test_blocks_are_compiled_once(text, recipe):
    torch = pytest.importorskip("torch")
    if not any(map(shutil.which, device_rules.compilers("cpu"))):
        pytest.skip("no C++ compiler on this machine")
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = train(a_job(text, compile=True, **recipe), steps=2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, f"{MODEL.layers} blocks, one graph"
    assert np.allclose(compiled, train(a_job(text), steps=2), rtol=1e-5, atol=0)


# Offload


def _offloaded_rank(rank, job, path, pipe):
    """One of two ranks with offloaded shards; both memories are the host's."""
    import os

    import torch

    from trainyard.train import process_group
    from trainyard.train.model.language_task import Bytes, Language
    from trainyard.train.step.trainer import Trainer

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    device_rules.check = lambda recipe, vendor: None
    with process_group.process_group_context(process_group.find_ranks("cpu"), f"file://{path}"):
        trainer = Trainer(job, process_group.find_ranks("cpu"), Language(job), Bytes(job), model_flops=0)
        state = next(iter(trainer.parallel_model.modules[0].layers.values()))._get_fsdp_state()
        results = [trainer(step) for step in range(STEPS)]
        pipe.send((results, type(state._fsdp_param_group.offload_policy).__name__))


@pytest.mark.torch
@pytest.mark.slow
def test_offload_keeps_losses(text, tmp_path):
    pytest.importorskip("torch")
    job = a_job(text, Layout(dp_shard=2), offload=True, optimizer="muon")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    given = [(rank, job, str(tmp_path / "meet"), pipes[rank][1]) for rank in range(2)]
    processes = [context.Process(target=_offloaded_rank, args=each, daemon=True) for each in given]
    for process in processes:
        process.start()
    assert all(reading.poll(240) for reading, _ in pipes)
    results = [reading.recv() for reading, _ in pipes]
    for process in processes:
        process.join(60)
    alone = train(a_job(text, optimizer="muon"))
    for outcomes, policy in results:
        assert policy == "CPUOffloadPolicy"
        assert np.allclose(alone, outcomes, rtol=1e-5, atol=0)


# Refusals


def test_recipe_unsupported_by_the_device_is_refused(monkeypatch):
    recipe = Recipe(tokens_per_step=1)
    for vendor in ("cpu", "nvidia", "amd"):
        device_rules.check(recipe, vendor)
    with refused(BadJob, "dtype = 'tf32'", "$.recipe", "cpu", "dtype = 'float32'"):
        device_rules.check(Recipe(tokens_per_step=1, dtype="tf32"), "cpu")
    device_rules.check(Recipe(tokens_per_step=1, dtype="tf32"), "nvidia")
    with refused(BadJob, "offload = true", "$.recipe", "CPU", "offload = false"):
        device_rules.check(Recipe(tokens_per_step=1, offload=True), "cpu")
    device_rules.check(Recipe(tokens_per_step=1, offload=True), "nvidia")
    monkeypatch.setattr(device_rules, "find_spec", lambda name: None)
    with refused(MissingLibrary, "dtype = 'float8'", "torchao", "trainyard[float8]"):
        device_rules.check(Recipe(tokens_per_step=1, dtype="float8"), "nvidia")


def test_emulated_float8_gives_a_notice():
    def notices(dtype, vendor):
        return device_rules.notices(Recipe(tokens_per_step=1, dtype=dtype), vendor)

    [notice] = notices("float8", "cpu")
    assert "emulated" in notice
    assert not notices("float8", "nvidia")
    assert not notices("bfloat16", "cpu")


@pytest.mark.parametrize(
    ("vendor", "variable", "usual"), [("cpu", "CXX", {"g++", "clang++"}), ("nvidia", "CC", {"gcc or clang"})]
)
def test_compiling_needs_a_compiler(monkeypatch, tmp_path, vendor, variable, usual):
    compiled = Recipe(tokens_per_step=1, compile=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    with refused(MissingProgram, "compile", "$.recipe") as caught:
        device_rules.check(compiled, vendor)
    assert any(missing_values(str(caught.value), name) == [] for name in usual)
    own = tmp_path / "own-compiler"
    own.touch(mode=0o755)
    monkeypatch.setenv(variable, "own-compiler")
    device_rules.check(compiled, vendor)
    monkeypatch.setenv(variable, "another")
    with refused(MissingProgram, "compile", "$.recipe", "another"):
        device_rules.check(compiled, vendor)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"dtype": "float4"}, ["dtype = 'float4'", "$.recipe", "'bfloat16'", "'float8'"]),
        (
            {"dtype": "float8", "spread": Layout(tp=2)},
            ["dtype = 'float8'", "tp = 2", "$.layout", "dtype = 'bfloat16'", "tp = 1"],
        ),
        ({"offload": True}, ["offload = true", "one rank", "offload = false"]),
        (
            {"offload": True, "spread": Layout(dp_replicate=2)},
            ["offload = true", "dp_replicate 2", "dp_shard = 2, zero = 3"],
        ),
        ({"offload": True, "spread": Layout(dp_shard=2, zero=1)}, ["offload = true", "dp_shard 2, ZeRO-1", "zero = 3"]),
        (
            {"offload": True, "spread": Layout(dp_shard=2, tp=2)},
            ["offload = true", "tp = 2", "$.layout", "dp_shard = 4"],
        ),
        (
            {"activation_checkpoint_every": 2},
            ["activation_checkpoint_every = 2", "activation_checkpoint = 'none'", "activation_checkpoint = 'full'"],
        ),
        (
            {"compile": "whole", "schedule": "gpipe", "spread": Layout(pp=2)},
            ["compile = 'whole'", "pp = 2", "$.layout", "compile = true"],
        ),
    ],
)
def test_refusal_names_a_valid_recipe(change, values):
    with refused(BadJob, "$.recipe", *values):
        trainable.check(a_job(**change))
