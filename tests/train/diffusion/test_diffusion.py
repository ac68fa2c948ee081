"""Diffusion: published sizes, FLOPs match torch, steps do not depend on the layout, and noise is a function of
(seed, step, index)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counted import a_job, counted, expected, train
from tests.marks import nightly_except
from tests.refused import refused
from trainyard import plugins
from trainyard.errors import BadJob
from trainyard.layout import Layout
from trainyard.models import presets
from trainyard.train.vision import images
from trainyard.workloads.diffusion import Diffusion
from trainyard.workloads.ops import diffusion_ops

WORKLOAD = Diffusion()
PUBLISHED = {"sd3-medium": 2_028_328_000, "flux1-dev": 11_901_408_320, "sd1.5-unet": 859_520_964}
TINY = ("tiny-dit", "tiny-flux", "tiny-dit-plain", "tiny-unet")
DITS = TINY[:3]


def parts(job):
    return WORKLOAD.task_and_samples(job, diffusion_ops.check(job))


# Sizes


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_sizes_have_the_published_parameter_counts(name):
    claimed = presets.load(name).parameters
    assert claimed is not None
    assert claimed.value == PUBLISHED[name]
    job = a_job(name)
    assert diffusion_ops.tally(diffusion_ops.check(job), job.recipe).parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("preset", "change", "values"),
    [
        ("tiny-dit", {"latent": 9}, ["$.sizes.latent", "latent 9 % patch 2", 1]),
        ("tiny-dit", {"channels": 8}, ["$.sizes.channels", "channels = 8"]),
        ("tiny-flux", {"rope": [2, 2, 2]}, ["$.sizes.rope", "2 + 2 + 2 = 6", "width 32", "heads 4", 8]),
        ("tiny-flux", {"rope": [1, 3, 4]}, ["$.sizes.rope", "[1, 3, 4]"]),
        ("tiny-dit", {"plain": 1}, ["$.sizes.plain", "plain = 1", "$.sizes.double", "double = 2"]),
        ("tiny-dit-plain", {"text_tokens": 3}, ["$.sizes.text_tokens", "text_tokens = 3"]),
        ("tiny-dit-plain", {"plain": 0}, ["$.sizes.double", "double = 0"]),
        ("tiny-dit", {"doubles": 3}, ["$.sizes.doubles", "'doubles'", "'double'"]),
        ("tiny-unet", {"latent": 7}, ["$.sizes.latent", "latent 7 % 2", 1, 8]),
        ("tiny-unet", {"attention": [1]}, ["$.sizes.attention", 1, "$.sizes.multiples", 2]),
        ("tiny-unet", {"groups": 5}, ["$.sizes.width", "width 16 % groups 5", 1]),
        ("tiny-unet", {"family": "vit"}, ["$.sizes.family", "family = 'vit'", "'dit'"]),
    ],
)
def test_impossible_sizes_name_the_key_and_the_next_step(preset, change, values):
    with refused(BadJob, *values):
        diffusion_ops.check(a_job(preset, sizes=change))


@pytest.mark.parametrize(
    ("job", "values"),
    [
        (a_job("tiny-dit", seq_len=4), ["seq_len = 1", "tokens_per_step = 4"]),
        (a_job("tiny-dit", Layout(tp=3)), ["$.layout:", "tp = 3", "heads 4 % tp 3", 1]),
        (a_job("tiny-dit", Layout(cp=2)), ["cp = 2", "dp_replicate, dp_shard, tp"]),
        (a_job("tiny-unet", Layout(tp=2)), ["tp = 2", "dp_replicate, dp_shard", 2, "dp_shard 2"]),
    ],
)
def test_refusal_names_a_valid_alternative(job, values):
    with refused(BadJob, *values):
        plugins.load("workloads", "diffusion").expect(job)


# Arithmetic


@settings(max_examples=30)
@given(
    st.sampled_from(TINY),
    st.sampled_from([Layout(), Layout(dp_replicate=2), Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_any_split_has_the_same_arithmetic(preset, layout, micro_batch_size, activation_checkpoint):
    split = a_job(preset, layout, micro_batch_size=micro_batch_size, activation_checkpoint=activation_checkpoint)
    alone = a_job(preset, micro_batch_size=16, activation_checkpoint=activation_checkpoint)
    assert {op: flops * layout.ranks for op, flops in expected(split).items()} == expected(alone)
    assert WORKLOAD.model_flops(split) == WORKLOAD.model_flops(alone)
    assert all(operation.bytes > 0 for operation in WORKLOAD.expect(split))


@pytest.mark.parametrize("preset", DITS)
def test_tp_halves_attention_and_replicates_conditioning(preset):
    alone, split = expected(a_job(preset)), expected(a_job(preset, Layout(tp=2)))
    assert 2 * split["attention"] == alone["attention"]
    assert alone["matmul"] / 2 < split["matmul"] < alone["matmul"]


def meta_batch(job):
    torch = pytest.importorskip("torch")
    sizes, samples = diffusion_ops.check(job), job.batch
    with torch.device("meta"):
        latents = torch.empty(samples, sizes.channels, sizes.latent, sizes.latent)
        inputs = (latents, torch.empty(samples), torch.empty(samples, sizes.text_tokens, sizes.text_width))
        if hasattr(sizes, "pooled_width"):
            inputs += (torch.empty(samples, sizes.pooled_width),)
    return inputs, (latents,)


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["none", "full"])
@pytest.mark.parametrize("preset", TINY)
def test_flops_match_torch(preset, activation_checkpoint):
    job = a_job(preset, micro_batch_size=16, activation_checkpoint=activation_checkpoint)
    assert counted(parts(job)[0], *meta_batch(job), job.recipe)[0] == expected(job)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(PUBLISHED, ["sd3-medium", "sd1.5-unet"]))
def test_full_size_flops_match_torch(name):
    job = a_job(name, tokens_per_step=1, micro_batch_size=1)
    flops, parameters = counted(parts(job)[0], *meta_batch(job), job.recipe)
    assert flops == expected(job)
    assert parameters == PUBLISHED[name]


# Samples


@pytest.mark.torch
def test_latents_are_squares_of_pixels():
    pytest.importorskip("torch")
    from trainyard.train.diffusion.latents import latents

    picture = np.arange(36, dtype=np.float32).reshape(6, 6)
    cut = latents(picture, 4)
    assert cut.shape == (4, 3, 3)
    assert cut[:, 0, 0].tolist() == [0, 1, 6, 7]
    assert cut[:, 2, 1].tolist() == picture[4:6, 2:4].ravel().tolist()


@pytest.mark.torch
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_target_recovers_the_latents(seed, index):
    pytest.importorskip("torch")
    from trainyard.train.diffusion import latents as noise

    clean = images.rng("clean", seed, 0, index).standard_normal((4, 2, 2), dtype=np.float32)
    flow = noise.flow(clean, images.rng("noise", seed, 0, index))
    assert 0 < flow.time < 1
    assert np.allclose(flow.mixed - flow.time * flow.target, clean, atol=1e-5)
    noisy = noise.diffuse(clean, images.rng("noise", seed, 0, index))
    assert noisy.time in range(1000)
    left = noise._signal_variance()[int(noisy.time)]
    assert np.allclose(noisy.mixed - (1 - left) ** 0.5 * noisy.target, left**0.5 * clean, atol=1e-5)


@pytest.mark.torch
def test_noise_levels_run_from_nearly_none_to_nearly_all():
    pytest.importorskip("torch")
    from trainyard.train.diffusion.latents import _signal_variance

    assert _signal_variance()[0] == pytest.approx(1 - 0.00085)
    assert 0.004 < _signal_variance()[-1] < 0.005, "Stable Diffusion 1 keeps some of the picture at its last level"
    assert (np.diff(_signal_variance()) < 0).all()


@pytest.mark.torch
@pytest.mark.parametrize("preset", TINY)
def test_samples_do_not_depend_on_the_number_of_ranks(preset):
    torch = pytest.importorskip("torch")
    samples = parts(a_job(preset))[1]
    whole = samples.batch(3, range(6))
    shares = [samples.batch(3, range(rank * 2, rank * 2 + 2)) for rank in range(3)]
    for part in ("inputs", "targets"):
        for number, tensor in enumerate(getattr(whole, part)):
            assert tensor.dtype == torch.float32
            assert torch.equal(torch.cat([getattr(share, part)[number] for share in shares]), tensor)
    assert not torch.equal(samples.batch(4, range(6)).inputs[0], whole.inputs[0])
    assert samples.source.endswith("; latents are squares of their pixels, text is synthetic")


@pytest.mark.torch
def test_images_of_a_class_have_its_text(tmp_path):
    torch = pytest.importorskip("torch")
    for label, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "one.npy", np.full((8, 8), 255 * label, np.uint8))
    _, samples = parts(a_job("tiny-dit", dataset=str(tmp_path)))
    batch = samples.batch(0, range(16))
    text, pooled = batch.inputs[2], batch.inputs[3]
    assert len({row.numpy().tobytes() for row in text}) == len({row.numpy().tobytes() for row in pooled}) == 2
    clean = batch.inputs[0] - batch.inputs[1][:, None, None, None] * batch.targets[0]
    bright = clean.mean((1, 2, 3)) > 0
    assert torch.equal(text[bright], text[bright][:1].expand_as(text[bright]))


# The model


@pytest.mark.torch
@pytest.mark.parametrize("preset", DITS)
def test_patches_convert_back_to_latents(preset):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = parts(a_job(preset))[0].module()
    latents = torch.randn(2, 4, 8, 8)
    patches = model._patches(latents)
    assert torch.equal(patches[:, 1], latents[:, :, 0:2, 2:4].flatten(1)), "the second patch of the first row"
    assert torch.equal(model._latents(patches), latents)


@pytest.mark.torch
def test_rotary_table_has_separate_channels_per_axis_and_none_for_text():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = parts(a_job("tiny-flux"))[0].module()
    cos, sin = model._rotary_table(6, torch.device("cpu"))
    assert torch.equal(cos[:7], torch.ones(7, 8)), "text, and the patch in the corner"
    assert not sin[:7].any()
    angles = torch.atan2(sin, cos)[:, :4]  # order, row, column, column: in pairs with the other half
    assert not angles[:, 0].any()
    assert torch.allclose(angles[6 + 4 * 2 + 3], torch.tensor([0.0, 2.0, 3.0, 0.03]))


@pytest.mark.torch
@pytest.mark.parametrize("preset", TINY)
def test_text_and_time_change_the_output(preset):
    torch = pytest.importorskip("torch")
    from trainyard.train.model import initial_weights

    task, samples = parts(a_job(preset))
    model = task.module()
    initial_weights.fill(model, task)
    given = samples.batch(0, range(2)).inputs
    with torch.no_grad():
        plain = model(*given)
        for number in [number for number in range(1, len(given)) if given[number].numel()]:
            changed = [part + (1 if number == changed_index else 0) for changed_index, part in enumerate(given)]
            assert not torch.allclose(model(*changed), plain, rtol=1e-4), number


# The step


@pytest.mark.torch
@pytest.mark.parametrize("preset", TINY)
def test_loss_falls_on_digits(preset):
    pytest.importorskip("torch")
    text = "digits" if has_digits() else "synthetic"
    job = a_job(preset, dataset=text, tokens_per_step=32, micro_batch_size=32, learning_rate=5e-3)
    losses = [outcome.loss for outcome in train(job, *parts(job), steps=40)[0]]
    assert np.mean(losses[-8:]) < 0.8 * losses[0]


def has_digits():
    from trainyard.errors import MissingLibrary

    try:
        images._digits_file()
    except MissingLibrary:
        return False
    return True


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["full", "selective"])
@pytest.mark.parametrize("preset", TINY)
def test_recomputation_changes_nothing(preset, activation_checkpoint):
    job = a_job(preset, tokens_per_step=4, micro_batch_size=2, activation_checkpoint=activation_checkpoint)
    plain, _ = train(a_job(preset, tokens_per_step=4, micro_batch_size=2), *parts(job), steps=2)
    again, _ = train(job, *parts(job), steps=2)
    assert np.allclose(plain, again, rtol=1e-5, atol=0)


@pytest.mark.torch
@pytest.mark.parametrize("preset", TINY)
def test_bfloat16_is_close_to_float32(preset):
    torch = pytest.importorskip("torch")
    job = a_job(preset, tokens_per_step=4, dtype="bfloat16")
    plain, _ = train(a_job(preset, tokens_per_step=4), *parts(a_job(preset)), steps=2)
    half, trainer = train(job, *parts(job), steps=2)
    assert {parameter.dtype for parameter in trainer.parallel_model.parameters} == {torch.float32}
    assert plain != half
    assert np.allclose([o.loss for o in plain], [o.loss for o in half], rtol=0.05)
