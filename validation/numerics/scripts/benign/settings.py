"""Settings of a training that may change rounding, but nothing else, and the sizes of a seed."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

Batch = tuple[Tensor, ...]
"""Tensors whose first dimension is the sample."""


class Task(NamedTuple):
    """`batch`: of a step. `loss`: mean over the samples of a batch, so that equal parts of a batch can be averaged."""

    model: nn.Module
    batch: Callable[[int], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]


class Sizes(NamedTuple):
    """Each seed has other shapes. `samples` is a multiple of 4, `width` of 16."""

    samples: int
    width: int
    length: int
    seed: int


def sizes(seed: int) -> Sizes:
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    return Sizes(draw.choice((4, 8)), draw.choice((16, 32, 48, 64)), draw.choice((8, 12, 16, 20)), seed)


def parse_settings(description: str | None, models: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", choices=models)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="compile each layer with Inductor")
    parser.add_argument("--parallel", choices=("ddp", "fsdp", "tp"))
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true", help="recompute the activations of each layer")
    parser.add_argument("--optimizer", choices=("for-loop", "foreach", "fused"), default="for-loop")
    parser.add_argument("--attention", choices=("explicit", "math", "flash"), default="explicit")
    parser.add_argument("--norm", choices=("fused", "decomposed"), default="fused")
    parser.add_argument("--packed", action="store_true", help="one row of samples of different lengths, not padded")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--no-onednn", action="store_true")
    parser.add_argument("--convolution", choices=("direct", "matrix"), default="direct")
    parser.add_argument("--product", choices=("whole", "chunked"), default="whole")
    parser.add_argument("--interaction", choices=("matmul", "einsum"), default="matmul")
    parser.add_argument("--sum-order", choices=("forward", "backward"), default="forward")
    parser.add_argument("--cells", action="store_true", help="compute the LSTM step by step")
    return parser.parse_args()
