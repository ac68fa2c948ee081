"""`python -m tests.planted FOLDER VENDOR`: a rank of a real run with one fault planted, named by $PLANTED.

The cost of each step's fault by this rank's own clock is written to FOLDER/planted/rank<N>.json, in ns, so that a
finding can be compared with the actual and not the intended cost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from trainyard.run.local import worker
from trainyard.train.data import text
from trainyard.train.step import gradient_clipping
from trainyard.train.step.trainer import Trainer

LATE = 1
"""The rank that `straggler` holds up."""
# Large compared with the noise of a busy machine, which is tens of ms per step.
_SLEEP_S = 0.15
_TINY = 6_000
_VALUES = 20_000


def straggler() -> None:
    """One rank does something else before each step."""
    if int(os.environ["RANK"]) == LATE:
        time.sleep(_SLEEP_S)


def loader() -> None:
    """A slow data set, inside the loader."""
    time.sleep(_SLEEP_S)


def tiny_kernels() -> None:
    """Thousands of ops on a tensor of four numbers, between the backward pass and the optimizer."""
    few = torch.zeros(4)
    for _ in range(_TINY):
        few.add_(1.0)


@cache
def values() -> tuple[torch.Tensor, ...]:
    return torch.arange(float(_VALUES)).unbind()


def item() -> None:
    """Thousands of values read one by one, as for a histogram of per-sample losses."""
    total = 0.0
    for value in values():
        total += value.item()


PLACES: dict[str, tuple[Callable[[], None], Any, str]] = {
    "straggler": (straggler, Trainer, "__call__"),
    "loader": (loader, text, "batch"),
    "tiny_kernels": (tiny_kernels, gradient_clipping, "total_norm"),
    "item": (item, gradient_clipping, "total_norm"),
}
"""Fault -> (fault, owner, name of the function before which it happens). Each is called once a step."""


def plant(fault: str) -> list[int]:
    """Plants a fault and returns a list to which the cost of each step is appended, ns."""
    costs: list[int] = []
    if not fault:
        return costs
    happen, owner, name = PLACES[fault]
    original = getattr(owner, name)

    def held_up(*args: Any, **options: Any) -> Any:
        began = time.perf_counter_ns()
        happen()
        costs.append(time.perf_counter_ns() - began)
        return original(*args, **options)

    setattr(owner, name, held_up)
    return costs


def main(folder: Path, vendor: str) -> None:
    costs = plant(os.environ["PLANTED"])
    worker.main(folder, vendor)
    (folder / "planted").mkdir(exist_ok=True)
    (folder / "planted" / f"rank{os.environ['RANK']}.json").write_text(json.dumps(costs))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
