"""Options that every training script of this folder takes, and the lines that it prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


class Options(NamedTuple):
    """`faulty`: whether to train with the fault. `dtype`: of the parameters, and of all that is computed from them."""

    faulty: bool
    dtype: torch.dtype
    seed: int
    steps: int
    target: str = ""


def parse_options(description: str | None, *, dtype: str = "float32", targets: Sequence[str] = ()) -> Options:
    """Parses the command line, seeds torch, and makes `--dtype` the default dtype of new tensors.

    `targets`: choices of `--target`, for a script with several faults.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("good", "faulty"), default="good")
    parser.add_argument("--dtype", choices=DTYPES, default=dtype)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3)
    if targets:
        parser.add_argument("--target", choices=targets, default=targets[0])
    given = parser.parse_args()
    torch.set_num_threads(1)  # more threads than cores slow each other down
    torch.set_default_dtype(DTYPES[given.dtype])
    torch.manual_seed(given.seed)
    return Options(
        given.variant == "faulty", DTYPES[given.dtype], given.seed, given.steps, given.target if targets else ""
    )


def print_loss(step: int, loss: Tensor | float) -> None:
    value = loss.item() if isinstance(loss, Tensor) else loss
    _print_line(f"step {step} loss {value!r}")


def print_weights(model: nn.Module) -> None:
    """Prints a fixed combination of all weights: any change of a weight changes it. Uses numpy, so that torch does not
    see it."""
    combination = 0.0
    for number, parameter in enumerate(model.parameters()):
        held = parameter.detach()
        local = (held.to_local() if isinstance(held, DTensor) else held).double().numpy().ravel()
        combination += float(local @ np.cos(np.arange(local.size) + number))
    _print_line(f"weights {combination!r}")


def _print_line(text: str) -> None:
    """Prints a line in one piece, because two ranks share the output."""
    sys.stdout.write(f"rank {os.environ.get('RANK', '0')} {text}\n")
    sys.stdout.flush()
