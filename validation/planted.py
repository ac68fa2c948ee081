"""One rank of a training script with a planted cost: `python -m validation.planted FOLDER PLANT`.

Started by torch's launcher. A plain PyTorch loop (DDP if there are several ranks) whose steps with odd numbers have the
cost that PLANT names; the others do not. Writes the profiler's trace to FOLDER/rank<N>.json.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

SLEEP_S = 0.08
STEPS = 26
WIDTH, BATCH = 128, 64


class Samples(Dataset[torch.Tensor]):
    """Random samples. If `slow`, the samples of odd steps take `SLEEP_S` for each batch to load."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return BATCH * (STEPS + 2)

    def __getitem__(self, index: int) -> torch.Tensor:
        """A sample; the first one of an odd batch is late."""
        if self.slow and index % BATCH == 0 and (index // BATCH) % 2:
            time.sleep(SLEEP_S)
        return torch.full((WIDTH,), index % 7 / 7)


def straggler() -> None:
    if int(os.environ["RANK"]) == 1:
        time.sleep(SLEEP_S)


def python() -> None:
    """A loop of interpreted Python."""
    with record_function("python_loop"):
        until = time.perf_counter() + SLEEP_S
        while time.perf_counter() < until:
            pass


def host_sync() -> None:
    """Values read one by one."""
    total = 0.0
    for value in _scalars():
        total += value.item()


def slow_op() -> None:
    _unsorted().sort()


def collective() -> None:
    """An additional collective, and a wait for it."""
    dist.all_gather(_gathered(), _large())


def copies() -> None:
    """Copies of a large tensor into another one."""
    for target in _gathered() * 18:
        target.copy_(_large())


def checkpoint() -> None:
    """A checkpoint to a slow disk."""
    with record_function("save_checkpoint"):
        time.sleep(SLEEP_S)


def tiny_ops() -> None:
    few = torch.zeros(4)
    for _ in range(8_000):
        few.add_(1.0)


def nothing() -> None:
    pass


@cache
def _scalars() -> tuple[torch.Tensor, ...]:
    return torch.arange(20_000.0).unbind()


@cache
def _unsorted() -> torch.Tensor:
    return torch.arange(300_000, dtype=torch.float32).sin()


@cache
def _large() -> torch.Tensor:
    return torch.ones(5_000_000)


@cache
def _gathered() -> list[torch.Tensor]:
    return [torch.empty_like(_large()) for _ in range(dist.get_world_size())]


PLANTS: dict[str, Callable[[], None]] = {
    "straggler": straggler,
    "loader": nothing,
    "python": python,
    "host_sync": host_sync,
    "slow_op": slow_op,
    "collective": collective,
    "copies": copies,
    "checkpoint": checkpoint,
    "tiny_ops": tiny_ops,
}
"""Plant -> its cost in an odd step; that of `loader` is in `Samples`."""


def main(folder: Path, plant: str) -> None:
    """Trains for some steps with the plant in odd ones, and writes the trace of all but the first two."""
    torch.set_num_threads(1)  # threads that wait for each other are very slow on a machine with other work
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    dist.init_process_group("gloo")
    model: torch.nn.Module = torch.nn.Sequential(
        *(layer for _ in range(6) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()))
    )
    model = torch.nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for prepared in (_scalars, _unsorted, _gathered):
        prepared()
    batches = iter(DataLoader(Samples(plant == "loader"), batch_size=BATCH))
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=STEPS - 2)) as profiler:
        for step in range(STEPS):
            batch = next(batches)
            loss = model(batch).square().mean()
            if step % 2:
                PLANTS[plant]()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
