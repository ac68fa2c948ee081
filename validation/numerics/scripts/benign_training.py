"""Trains one of five small models. Settings change how it is computed, and in which order numbers are added, only.

Without `--parallel` it runs as one process; with it, under torchrun.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch
from benign import conv_net, recommender, recurrent, transformer, unet
from benign.parallelism import parallelise
from benign.settings import Batch, parse_settings, sizes
from collectives import process_group
from command_line import DTYPES, print_loss, print_weights
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import init_device_mesh

MODELS = {
    "conv_net": conv_net.build,
    "recommender": recommender.build,
    "recurrent": recurrent.build,
    "transformer": transformer.build,
    "unet": unet.build,
}


def train(settings: argparse.Namespace, rank: int, ranks: int) -> None:
    task = MODELS[settings.model](settings, sizes(settings.seed))
    dtype = DTYPES[settings.dtype]
    model = task.model.to(dtype)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    layers = list(model.get_submodule("layers").children()) if hasattr(model, "layers") else []
    if settings.checkpointing:
        apply_activation_checkpointing(model, check_fn=lambda module: module in layers)
    if settings.compile:
        for layer in layers:
            layer.compile()
    if settings.parallel:
        model = parallelise(model, settings.parallel, init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, foreach=settings.optimizer == "foreach", fused=settings.optimizer == "fused"
    )
    splits_batch = settings.parallel in ("ddp", "fsdp")
    for step in range(settings.steps):
        optimizer.zero_grad()
        batch = _prepare(task.batch(step), dtype, settings.channels_last)
        own = tuple(part.chunk(ranks)[rank] for part in batch) if splits_batch else batch
        step_loss = 0.0
        for parts in zip(*(part.chunk(settings.micro_batches) for part in own), strict=True):
            loss = task.loss(model, parts) / settings.micro_batches
            loss.backward()
            step_loss += loss.item()
        optimizer.step()
        print_loss(step, step_loss)
    print_weights(model)


def _prepare(batch: Batch, dtype: torch.dtype, channels_last: bool) -> Batch:
    """The batch with its floating-point tensors in `dtype` and its images in the memory format."""

    def prepare(part: Tensor) -> Tensor:
        part = part.to(dtype) if part.is_floating_point() else part
        return part.to(memory_format=torch.channels_last) if channels_last and part.dim() == 4 else part

    return tuple(map(prepare, batch))


def main() -> None:
    settings = parse_settings(__doc__, list(MODELS))
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    onednn = torch.backends.mkldnn.flags(enabled=not settings.no_onednn)
    with onednn, process_group() if settings.parallel else nullcontext((0, 1)) as (rank, ranks):
        train(settings, rank, ranks)


if __name__ == "__main__":
    main()
