"""Convolutional networks in channels-last memory layout: the same training, with every convolution in that layout."""

import numpy as np
import pytest

from tests.counted import a_job, train

PRESETS = ("tiny-resnet", "tiny-unet")


def task_and_samples(job):
    from trainyard import plugins
    from trainyard.train.diffusion import diffusion_sizes
    from trainyard.train.sizes import convert
    from trainyard.train.vision import vision_sizes

    kinds = vision_sizes.KINDS if job.workload == "vision" else diffusion_sizes.KINDS
    return plugins.load("workloads", job.workload).task_and_samples(job, convert(job, *kinds))


def layouts_of(trainer, steps):
    """Whether each convolution has input and weight in channels-last layout, in steps of the trainer."""
    import torch

    seen, convolve = [], torch.nn.functional.conv2d

    def recorded(x, weight, *given):
        wide = [part for part in (x, weight) if part.shape[1] > 1 and part.shape[2] > 1]
        seen.extend(part.is_contiguous(memory_format=torch.channels_last) for part in wide)
        return convolve(x, weight, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "conv2d", recorded)
        for step in range(steps):
            trainer(step)
    return seen


def outcomes(preset, channels_last, jitter_seed=None):
    """Losses and gradient norms of two steps, shape (2, 2), and the trainer. With `jitter_seed`, each initial weight is
    first moved by one ulp in a random direction, which shows by how much rounding changes the outcomes."""
    import torch

    job = a_job(preset, channels_last=channels_last)
    _, trainer = train(job, *task_and_samples(job), steps=0)
    if jitter_seed is not None:
        generator = torch.Generator().manual_seed(jitter_seed)
        with torch.no_grad():
            for weight in trainer.parallel_model.modules[0].parameters():
                direction = torch.randint(0, 2, weight.shape, generator=generator) * 2.0 - 1.0
                weight.copy_(torch.nextafter(weight, weight + direction))
    return [trainer(step) for step in range(2)], trainer


@pytest.mark.torch
@pytest.mark.parametrize("preset", PRESETS)
def test_channels_last_gives_the_same_losses(preset):
    pytest.importorskip("torch")
    plain, first = outcomes(preset, channels_last=False)
    other, last = outcomes(preset, channels_last=True)
    replicas = [outcomes(preset, channels_last=False, jitter_seed=seed)[0] for seed in range(4)]
    rounding = np.abs(np.divide(replicas, plain) - 1).max(axis=0)
    assert np.all(np.abs(np.divide(other, plain) - 1) <= np.maximum(4 * rounding, 1e-6)), rounding
    assert not any(layouts_of(first, 1))
    assert all(layouts_of(last, 1))


@pytest.mark.torch
@pytest.mark.parametrize("benchmark", [True, False])
def test_cudnn_benchmarking_is_set_by_the_recipe(benchmark, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not benchmark)
    job = a_job("tiny-resnet", cudnn_benchmark=benchmark)
    train(job, *task_and_samples(job), steps=0)
    assert torch.backends.cudnn.benchmark == benchmark
