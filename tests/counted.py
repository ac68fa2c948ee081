"""FLOPs of matrix products as counted by torch and as expected by the workload, and short training runs."""

from collections import Counter

import pytest

from trainyard import plugins
from trainyard.job import Job
from trainyard.layout import Layout
from trainyard.models import presets
from trainyard.recipe import Recipe

CLASSES = {
    "aten.mm": "matmul",
    "aten.addmm": "matmul",
    "aten.bmm": "attention",
    "aten.convolution": "conv",
    "aten.convolution_backward": "conv",
}


def a_job(preset, layout=None, sizes=None, **recipe):
    """A job with a preset's sizes, 4 samples per micro-batch and 16 per step, on synthetic data by default."""
    base = presets.load(preset)
    recipe = {
        "tokens_per_step": 16,
        "micro_batch_size": 4,
        "learning_rate": 1e-2,
        "seed": 7,
        "dataset": "synthetic",
        **recipe,
    }
    return Job(
        workload=base.workload,
        sizes={**base.sizes, **(sizes or {})},
        layout=layout or Layout(),
        recipe=Recipe(**recipe),
    )


def expected(job):
    """op -> FLOPs of the products of all phases, with four products in the attention backward pass as in the unfused
    kernel (a fused one has five)."""
    total = Counter()
    for operation in plugins.load("workloads", job.workload).expect(job):
        if operation.op in CLASSES.values():
            plain = (operation.op, operation.phase) == ("attention", "backward")
            total[operation.op] += operation.flops * 4 // 5 if plain else operation.flops
    return dict(total)


def counted(task, inputs, targets, recipe):
    """(op -> FLOPs, number of parameters): counted by torch in a forward and backward pass on the meta device."""
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from trainyard.train.model import blocks

    with torch.device("meta"):
        model = task.module()
    blocks.prepare(task.blocks(model), recipe)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.loss(model(*inputs), targets).backward()
    total = Counter()
    for op, flops in counter.get_flop_counts()["Global"].items():
        total[CLASSES[str(op)]] += flops
    return dict(total), sum(parameter.numel() for parameter in model.parameters())


def train(job, task, samples, steps):
    """Outcomes of a single rank in this process, and its trainer."""
    torch = pytest.importorskip("torch")
    from trainyard.train.process_group import Ranks
    from trainyard.train.step.trainer import Trainer

    torch.set_num_threads(1)  # threads that wait for each other crawl on a machine with other work
    trainer = Trainer(job, Ranks(0, 0, 1, 1, "cpu", torch.device("cpu")), task, samples, model_flops=0)
    return [trainer(step) for step in range(steps)], trainer
