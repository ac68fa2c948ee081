"""Vision: published sizes, FLOPs match torch, steps do not depend on the layout, and images are a function of
(seed, step, index)."""

import multiprocessing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counted import a_job, counted, expected, train
from tests.marks import nightly_except
from tests.ranks import PRELOAD
from tests.refused import refused
from trainyard import plugins
from trainyard.errors import BadJob, MissingLibrary
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.train.vision import images as pictures
from trainyard.workloads.ops import vision_ops
from trainyard.workloads.vision import Vision

WORKLOAD = Vision()
PUBLISHED = {"vit-b-16": 86_567_656, "vit-l-16": 304_326_632, "vit-h-14": 632_045_800, "resnet-50": 25_557_032}
TINY = ("tiny-vit", "tiny-resnet")


def has_digits():
    try:
        pictures.check(Recipe(tokens_per_step=1))
    except MissingLibrary:
        return False
    return True


needs_digits = pytest.mark.skipif(not has_digits(), reason="scikit-learn, which brings the digits, is not installed")


def parts(job):
    return WORKLOAD.task_and_samples(job, vision_ops.check(job))


# Sizes


@pytest.mark.parametrize("name", PUBLISHED)
def test_full_sizes_have_the_published_parameter_counts(name):
    claimed = presets.load(name).parameters
    assert claimed is not None
    assert claimed.value == PUBLISHED[name]
    job = a_job(name)
    assert vision_ops.tally(vision_ops.check(job), job.recipe).parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("preset", "change", "values"),
    [
        ("tiny-vit", {"width": 30}, ["width 30 % heads 4 = 2", "$.sizes.width", 32]),
        (
            "tiny-vit",
            {"patch": 5},
            ["image 16 % patch 5 = 1", "$.sizes.image", 15],
        ),
        ("tiny-vit", {"layer": 3}, ["'layer'", "$.sizes.layer", "'layers'"]),
        ("tiny-vit", {"heads": "four"}, ["int", "str", "$.sizes.heads"]),
        ("tiny-vit", {"classes": 1}, ["classes = 1", 2, "$.sizes.classes"]),
        ("tiny-vit", {"family": "vitt"}, ["family = 'vitt'", "$.sizes.family", "'vit'"]),
        ("tiny-resnet", {"stages": [2, 0]}, ["stages = [2, 0]", 1, "$.sizes.stages"]),
        ("tiny-resnet", {"stages": []}, ["stages = []", "$.sizes.stages", "[3, 4, 6, 3]"]),
    ],
)
def test_impossible_sizes_name_the_key_and_the_next_step(preset, change, values):
    with refused(BadJob, *values):
        vision_ops.check(a_job(preset, sizes=change))


def test_a_missing_size_and_missing_sizes_are_named():
    with refused(BadJob, "layers", "$.sizes.layers"):
        vision_ops.check(Job(workload="vision", sizes={"family": "vit"}, recipe=Recipe(tokens_per_step=1)))
    with refused(BadJob, "workload = 'vision'", "$.sizes", "family = 'vit' or 'resnet'"):
        vision_ops.check(Job(workload="vision", recipe=Recipe(tokens_per_step=1)))


@pytest.mark.parametrize(
    ("job", "values"),
    [
        (a_job("tiny-vit", seq_len=4), ["seq_len = 4", "$.recipe.seq_len", "seq_len = 1 and tokens_per_step = 4"]),
        (a_job("tiny-vit", dtype="float8"), ["dtype = 'float8'", "$.recipe", "dtype = 'bfloat16'"]),
        (a_job("tiny-vit", Layout(tp=4)), ["tp = 4", "$.layout", "classes 10 % tp 4 = 2", "tp = 2"]),
        (
            a_job("tiny-vit", Layout(tp=2, loss_parallel=True)),
            ["loss_parallel = true", "$.layout", "loss_parallel = false"],
        ),
        (
            a_job("tiny-vit", Layout(pp=2)),
            ["$.layout", "pp = 2", "dp_replicate, dp_shard, tp", "2 ranks, dp_shard 2"],
        ),
        (
            a_job("tiny-resnet", Layout(tp=2)),
            ["$.layout", "tp = 2", "dp_replicate, dp_shard", "2 ranks, dp_shard 2"],
        ),
        (
            a_job("tiny-resnet", sizes={"image": 4}, micro_batch_size=1),
            ["micro_batch_size 1 * 1 * 1", "$.recipe.micro_batch_size", "micro_batch_size = 2"],
        ),
    ],
)
def test_refusal_names_a_valid_alternative(job, values):
    with refused(BadJob, *values):
        plugins.load("workloads", "vision").expect(job)


# Arithmetic


@settings(max_examples=30)
@given(
    st.sampled_from(TINY),
    st.sampled_from([Layout(), Layout(dp_replicate=2), Layout(dp_shard=2), Layout(dp_replicate=2, dp_shard=2)]),
    st.sampled_from([2, 4]),
    st.sampled_from(["none", "selective", "full"]),
)
def test_any_split_has_the_same_arithmetic(preset, layout, micro_batch_size, activation_checkpoint):
    split = a_job(preset, layout, micro_batch_size=micro_batch_size, activation_checkpoint=activation_checkpoint)
    alone = a_job(preset, micro_batch_size=16, activation_checkpoint=activation_checkpoint)
    assert {op: flops * layout.ranks for op, flops in expected(split).items()} == expected(alone)
    assert WORKLOAD.model_flops(split) == WORKLOAD.model_flops(alone)
    assert all(operation.bytes > 0 for operation in WORKLOAD.expect(split))


def test_tp_splits_the_blocks_between_the_ends():
    """Both ranks compute all patches, the rest is halved; a rank updates slightly more than half of the weights."""

    def tallied(job, op, phase):
        return next(o for o in WORKLOAD.expect(job) if (o.op, o.phase) == (op, phase))

    alone, split = a_job("tiny-vit"), a_job("tiny-vit", Layout(tp=2))
    for op in ("matmul", "attention"):
        assert 2 * tallied(split, op, "forward").flops == tallied(alone, op, "forward").flops
    assert tallied(split, "conv", "forward") == tallied(alone, "conv", "forward")
    halves = tallied(split, "optimizer", "optimizer").flops / tallied(alone, "optimizer", "optimizer").flops
    assert 0.5 < halves < 0.6
    assert WORKLOAD.model_flops(split) == WORKLOAD.model_flops(alone)


def meta_batch(job):
    torch = pytest.importorskip("torch")
    sizes, samples = vision_ops.check(job), job.batch
    images = torch.empty(samples, sizes.channels, sizes.image, sizes.image, device="meta")
    return (images,), (torch.zeros(samples, dtype=torch.long, device="meta"),)


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["none", "full"])
@pytest.mark.parametrize("preset", TINY)
def test_flops_match_torch(preset, activation_checkpoint):
    job = a_job(preset, micro_batch_size=16, activation_checkpoint=activation_checkpoint)
    assert counted(parts(job)[0], *meta_batch(job), job.recipe)[0] == expected(job)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(PUBLISHED, ["resnet-50", "vit-b-16"]))
def test_full_size_flops_match_torch(name):
    job = a_job(name, tokens_per_step=1, micro_batch_size=1)
    flops, parameters = counted(parts(job)[0], *meta_batch(job), job.recipe)
    assert flops == expected(job)
    assert parameters == PUBLISHED[name]


# Pictures


def test_scaling_keeps_constants_and_averages_when_downscaling():
    for length, to in ((8, 16), (8, 20), (16, 5), (7, 7), (1, 4)):
        assert np.allclose(pictures.interpolation_matrix(length, to).sum(axis=1), 1)
    assert np.allclose(pictures.interpolation_matrix(7, 7), np.eye(7))
    assert np.allclose((pictures.interpolation_matrix(8, 4) @ np.arange(8.0))[1:3], [2.5, 4.5])
    smooth = pictures.interpolation_matrix(8, 16) @ np.arange(8.0)
    assert np.all(np.diff(smooth[1:-1]) == pytest.approx(0.5))


def test_folder_is_read_by_class_without_its_path(tmp_path):
    root = tmp_path / "shapes"
    for name, array in (
        ("cats/one.npy", np.full((4, 6), 255, np.uint8)),
        ("cats/many.npy", np.zeros((3, 4, 4, 3), np.uint8)),
        ("dogs/half.npy", np.full((4, 4, 1), 0.5, np.float32)),
        (".hidden/no.npy", np.zeros((4, 4), np.uint8)),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / name, array)
    image_set = pictures.read(str(root), 10)
    assert list(image_set.labels) == [0, 0, 0, 0, 1]
    assert [picture.shape for picture in image_set.data] == [(4, 4, 3)] * 3 + [(4, 6, 1), (4, 4, 1)]
    assert image_set.data[3].min() == 1
    assert image_set.data[4].max() == 0.5
    assert image_set.source == "folder shapes, 5 pictures in 2 classes, scaled to the model's size"
    image, label = pictures.sample(image_set, 8, 3, seed=0, step=0, index=0)
    assert image.shape == (3, 8, 8)
    assert image.dtype == np.float32
    assert label in (0, 1)
    with refused(BadJob, "shapes", "2 classes", "classes = 1", "$.sizes.classes"):
        pictures.read(str(root), 1)


def test_png_files_are_read(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "grey.png")
    image.fromarray(np.zeros((3, 4, 3), np.uint8)).save(tmp_path / "red.png")
    image_set = pictures.read(str(tmp_path), 10)
    assert [picture.shape for picture in image_set.data] == [(3, 4, 1), (3, 4, 3)]
    assert np.allclose(image_set.data[0][..., 0] * 255, np.arange(12).reshape(3, 4))


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (np.zeros((4, 4), np.int64), ["int64", "uint8"]),
        (np.full((4, 4), 2.0), ["2.0 to 2.0", "0 to 1"]),
        (np.full((4, 4), np.nan), ["nan to nan", "0 to 1"]),
        (np.zeros(4, np.uint8), ["(4,)", "(N, H, W, C)"]),
        (np.array([{}]), ["allow_pickle=False"]),
    ],
)
def test_invalid_image_is_refused(tmp_path, array, values):
    np.save(tmp_path / "bad.npy", array)
    with refused(BadJob, tmp_path / "bad.npy", *values):
        pictures.read(str(tmp_path), 10)


def test_a_header_that_claims_91_tb_is_refused(tmp_path):
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999,)}".ljust(117) + b"\n"
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with refused(BadJob, tmp_path / "bad.npy", "90.9 TiB"):
        pictures.read(str(tmp_path), 10)


def test_missing_images_are_refused(tmp_path):
    for find in (
        lambda source: pictures.read(source, 10),
        lambda s: pictures.check(Recipe(tokens_per_step=1, dataset=s)),
    ):
        with refused(BadJob, f"dataset = {str(tmp_path / 'nowhere')!r}", "$.recipe"):
            find(str(tmp_path / "nowhere"))
        with refused(BadJob, f"dataset = {str(tmp_path)!r}", "$.recipe", ".npy", ".png"):
            find(str(tmp_path))


def test_digits_without_scikit_learn_are_refused(monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with refused(MissingLibrary, "digits", "scikit-learn", "trainyard[data]"):
        pictures.read("digits", 10)


@needs_digits
def test_the_digits_are_real():
    image_set = pictures.read("digits", 10)
    assert len(image_set.data) == 1797
    assert image_set.source.startswith("scikit-learn's digits, 1,797 pictures of 8 x 8 grey pixels")
    assert image_set.sha256 == pictures.read("python", 10).sha256
    zeros = np.mean([picture[..., 0] for picture, label in zip(image_set.data, image_set.labels) if label == 0], axis=0)
    assert zeros[2:6, 3:5].mean() < 0.3 < zeros[2:6, 1:7].mean(), "a nought has a hole"


SHAPES = pictures.ImageSet([np.full((2, 2, 1), i / 64, np.float32) for i in range(64)], range(64), 64, "shapes", "")
NOTHING = pictures.read("synthetic", 10)


@given(
    st.sampled_from([SHAPES, NOTHING]),
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_samples_are_a_function_of_seed_step_and_index(source, seed, step, index):
    image, label = pictures.sample(source, 4, 1, seed, step, index)
    again, same = pictures.sample(source, 4, 1, seed, step, index)
    assert np.array_equal(image, again)
    assert label == same
    assert np.abs(image).max() <= 1
    if source is SHAPES:
        assert np.allclose(image, label / 64 * 2 - 1), "picture and class belong together"
    drawn = {pictures.sample(source, 4, 1, seed, step + 1, other)[0].tobytes() for other in range(8)}
    assert len(drawn) > 1


@pytest.mark.torch
def test_samples_do_not_depend_on_the_number_of_ranks():
    torch = pytest.importorskip("torch")
    samples = parts(a_job("tiny-vit"))[1]
    whole = samples.batch(3, range(12))
    shares = [samples.batch(3, range(rank * 4, rank * 4 + 4)) for rank in range(3)]
    for part in ("inputs", "targets"):
        (joined,) = (torch.cat([getattr(share, part)[0] for share in shares]),)
        assert torch.equal(joined, getattr(whole, part)[0])


# The step


@pytest.mark.torch
@needs_digits
@pytest.mark.parametrize(("preset", "micro_batch_size"), [("tiny-vit", 64), ("tiny-resnet", 32)])
def test_loss_falls_on_digits(preset, micro_batch_size):
    job = a_job(preset, dataset="digits", tokens_per_step=64, micro_batch_size=micro_batch_size)
    outcomes, trainer = train(job, *parts(job), steps=40)
    losses = [outcome.loss for outcome in outcomes]
    assert losses[0] == pytest.approx(np.log(10), rel=0.03), "an untrained model knows nothing"
    assert np.mean(losses[-5:]) < 1.2
    assert trainer.about().text.startswith("scikit-learn's digits")


@pytest.mark.torch
@pytest.mark.parametrize("activation_checkpoint", ["full", "selective"])
@pytest.mark.parametrize("preset", TINY)
def test_recomputation_changes_nothing(preset, activation_checkpoint):
    plain, before = train(a_job(preset), *parts(a_job(preset)), steps=3)
    job = a_job(preset, activation_checkpoint=activation_checkpoint)
    again, after = train(job, *parts(job), steps=3)
    assert np.allclose(plain, again, rtol=1e-5, atol=0)
    buffers = before.parallel_model.call.named_buffers(), after.parallel_model.call.named_buffers()
    for (name, buffer), (_, other) in zip(*buffers):
        assert np.allclose(buffer, other, rtol=1e-5), name


@pytest.mark.torch
@pytest.mark.parametrize("preset", TINY)
def test_bfloat16_is_close_to_float32(preset):
    torch = pytest.importorskip("torch")
    job = a_job(preset, dtype="bfloat16")
    plain, _ = train(a_job(preset), *parts(a_job(preset)), steps=3)
    half, trainer = train(job, *parts(job), steps=3)
    assert {parameter.dtype for parameter in trainer.parallel_model.parameters} == {torch.float32}
    assert plain != half
    assert np.allclose([o.loss for o in plain], [o.loss for o in half], rtol=0.05)


@pytest.mark.torch
def test_running_statistics_are_the_mean_over_micro_batches():
    torch = pytest.importorskip("torch")
    from trainyard.train.vision.convolutions import MOMENTUM, BatchNorm, update_running_statistics

    norm = BatchNorm(3)
    torch.nn.init.ones_(norm.weight)
    torch.nn.init.zeros_(norm.bias)
    plain = torch.nn.BatchNorm2d(3)
    micro = [torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(n)) * n + n for n in (1, 2)]
    for x in micro:
        assert torch.allclose(norm(x), plain(x), atol=1e-6)
    update_running_statistics([norm])
    for kept, start, each in (
        (norm.running_mean, 0, [x.mean((0, 2, 3)) for x in micro]),
        (norm.running_var, 1, [x.var((0, 2, 3)) for x in micro]),
    ):
        assert torch.allclose(kept, (1 - MOMENTUM) * start + MOMENTUM * torch.stack(each).mean(0), atol=1e-6)
    assert not norm.sums.any()
    assert set(norm.state_dict()) == {"weight", "bias", "running_mean", "running_var"}


def running_statistics(job, rank, folder):
    """Saves the running statistics of one rank of `job` after two steps to a file."""
    import torch

    from trainyard.train.process_group import Ranks, process_group_context
    from trainyard.train.step.trainer import Trainer

    torch.set_num_threads(1)
    ranks = Ranks(rank, rank, job.layout.ranks, job.layout.ranks, "cpu", torch.device("cpu"))
    with process_group_context(ranks, f"file://{folder}/meet"):
        trainer = Trainer(job, ranks, *parts(job), model_flops=0)
        for step in range(2):
            trainer(step)
        buffers = dict(trainer.parallel_model.modules[0].named_buffers())
        np.savez(f"{folder}/{rank}", **{name: value.numpy() for name, value in buffers.items()})


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_shard=2)], ids=str)
def test_running_statistics_are_the_same_on_every_rank_of_any_layout(layout, tmp_path):
    pytest.importorskip("torch")
    alone = train(a_job("tiny-resnet"), *parts(a_job("tiny-resnet")), steps=2)[1]
    job = a_job("tiny-resnet", layout)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    ranks = [context.Process(target=running_statistics, args=(job, rank, str(tmp_path))) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    kept = {name: value for name, value in alone.parallel_model.modules[0].named_buffers() if "running" in name}
    assert kept
    for name, value in kept.items():
        assert np.array_equal(first[name], second[name]), name
        assert np.allclose(first[name], value, rtol=1e-5, atol=1e-7), name
