"""Every kind of job that one device can hold trains like the plain one, in the memory that the planner predicts.

Trainings are built in this process, since a command for each of them would load torch each time.
"""

# ruff: noqa: T201  what is printed here is kept as evidence

from __future__ import annotations

import shutil
from importlib.util import find_spec

import pytest
from msgspec.structs import replace

from trainyard import plugins
from trainyard.job import Job
from trainyard.model import Model
from trainyard.models import presets
from trainyard.predict.inputs import cases
from trainyard.predict.memory import native_memory
from trainyard.recipe import Recipe
from trainyard.run.local.host_devices import find_devices

pytestmark = [pytest.mark.device, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(180)]

DENSE = {"layers": 4, "hidden_size": 1024, "ffn_hidden_size": 3584, "heads": 8, "kv_heads": 2, "head_dim": 128}
EXPERTS = {**DENSE, "experts": 4, "top_k": 2, "moe_ffn_hidden_size": 1792}
STEPS = 6
SLACK = 0.1
"""Relative error allowed of the predicted memory: the allocator rounds, and libraries have buffers of their own."""
SETTINGS = [
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"dtype": "float8"},
    {"activation_checkpoint": "selective"},
    {"activation_checkpoint": "full"},
    {"activation_checkpoint": "full", "activation_checkpoint_every": 2},
    {"offload": True},
    {"compile": True},
    {"compile": True, "dtype": "float8"},
    {"optimizer_implementation": "for-loop"},
    {"num_workers": 0, "pin_memory": False, "device_prefetch": False},
    {"on_non_finite": "ignore"},
]


def decoder_job(model=DENSE, **recipe) -> Job:
    given = {"dtype": "bfloat16", "micro_batch_size": 2, "learning_rate": 1e-3, **recipe}
    return Job(model=Model(**model), recipe=Recipe(seq_len=512, tokens_per_step=2048, **given))


def sized_job(name: str, **recipe) -> Job:
    preset = presets.load(name)
    given = {"dtype": "bfloat16", "micro_batch_size": 4, "dataset": "synthetic", **recipe}
    return Job(workload=preset.workload, sizes=preset.sizes or {}, recipe=Recipe(tokens_per_step=8, **given))


def train(job: Job) -> tuple[list[float], int]:
    """Loss of each step, and the peak bytes that the training added to those of the allocator."""
    torch = pytest.importorskip("torch")
    torch.cuda.empty_cache()
    vendor = find_devices(plugins.load_all("vendors"))[0].vendor
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    training = plugins.load("workloads", job.workload).build(job, vendor)
    losses = [float(training(step).loss) for step in range(STEPS)]
    return losses, torch.cuda.max_memory_allocated() - before


def skip_unless_possible(job: Job) -> None:
    if job.recipe.dtype == "float8" and find_spec("torchao") is None:
        pytest.skip("float8 needs torchao")
    if job.recipe.compile and not any(map(shutil.which, ("gcc", "clang"))):
        pytest.skip("torch.compile needs a C compiler")


@pytest.fixture(scope="module")
def plain() -> list[float]:
    return train(decoder_job())[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_settings_keep_the_losses(plain, settings):
    job = decoder_job(**settings)
    skip_unless_possible(job)
    losses, _ = train(job)
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(plain, rel=5e-2 if "dtype" in settings else 2e-2)


@pytest.mark.parametrize("optimizer", ["sgd", "muon", "shampoo"])
def test_other_optimizers_train(optimizer):
    losses, _ = train(decoder_job(optimizer=optimizer))
    assert min(losses) < losses[0]


@pytest.mark.parametrize(
    "name", ["tiny-dit", "tiny-dit-plain", "tiny-flux", "tiny-unet", "tiny-vit", "tiny-resnet", "tiny-dlrm"]
)
def test_other_workloads_train_in_float32_and_bfloat16(name):
    exact, half = (train(sized_job(name, dtype=dtype))[0] for dtype in ("float32", "bfloat16"))
    assert half[0] == pytest.approx(exact[0], rel=2e-2)


@pytest.mark.parametrize(
    "job",
    [
        decoder_job(),
        decoder_job(dtype="float32"),
        decoder_job(activation_checkpoint="full"),
        decoder_job(activation_checkpoint="selective"),
        decoder_job(optimizer="muon"),
        decoder_job({**DENSE, "vocab": 32000}),
        decoder_job(EXPERTS),
        sized_job("vit-b-16", micro_batch_size=4),
        replace(sized_job("dit-xl2"), sizes={**(presets.load("dit-xl2").sizes or {}), "plain": 4}),
    ],
    ids=lambda job: f"{job.workload}-{job.recipe.dtype}-{job.recipe.activation_checkpoint}-{job.recipe.optimizer}",
)
def test_predicted_memory_is_the_allocators_peak(job):
    predicted = float(native_memory.peak(cases.of_jobs([job]), first=True).total[0])
    _, peak = train(job)
    print(f"{job.workload}: predicted {predicted / 1e9:.3f} GB, allocated {peak / 1e9:.3f} GB")
    assert predicted == pytest.approx(peak, rel=SLACK)
