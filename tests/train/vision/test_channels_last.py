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


@pytest.mark.torch
@pytest.mark.parametrize("preset", PRESETS)
def test_channels_last_gives_the_same_losses(preset):
    pytest.importorskip("torch")
    jobs = [a_job(preset, channels_last=channels_last) for channels_last in (False, True)]
    (plain, first), (other, last) = (train(job, *task_and_samples(job), steps=2) for job in jobs)
    # The first step has the same weights. The gradient norm of the second amplifies the rounding of the first update.
    assert np.allclose(plain[0], other[0], rtol=1e-5, atol=0)
    assert np.isclose(plain[1][0], other[1][0], rtol=1e-5, atol=0)
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
