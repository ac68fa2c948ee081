"""`python -m benchmarks.overhead`: what the harness costs a step, against a bare loop of the same model in one run.

One process, one thread. Steps alternate between the bare loop (batch, forward, backward, clip, update, the loss read)
and the harness, each with a model of its own from one seed, first without the profiler, then with it. The figure is the
median of each pair's ratio, in CPU time, which other work on the machine lengthens least.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import process_time_ns

import torch

from trainyard.job import Job, Measure
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.run.local.planned_steps import PlannedStep
from trainyard.run.local.step_clock import StepClock
from trainyard.run.local.worker import Rank
from trainyard.train.model import initial_weights
from trainyard.train.model.language_task import Bytes, Language
from trainyard.train.process_group import find_ranks
from trainyard.train.step.trainer import Trainer

JOB = Job(
    model=Model(layers=4, hidden_size=128, ffn_hidden_size=384, heads=4, kv_heads=2, head_dim=32),
    recipe=Recipe(seq_len=128, tokens_per_step=1024, micro_batch_size=8, no_weight_decay=()),
    measure=Measure(warmup=0, profiled=0),
)
PAIRS, DISCARDED = 200, 4


def bare() -> Callable[[int], float]:
    """A hand-written training loop with the same model, batches and update."""
    task, samples = Language(JOB), Bytes(JOB)
    model = task.module()
    initial_weights.fill(model, task)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=JOB.recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def step(number: int) -> float:
        (tokens,), targets = samples.batch(number, range(JOB.batch))
        optimizer.zero_grad()
        loss = task.loss(model(tokens), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), JOB.recipe.max_norm)
        optimizer.step()
        return loss.item()

    return step


def harness(folder: Path) -> Callable[[int], float]:
    """A step as a rank of a run takes it: timed, its sample written, its line said."""
    ranks = find_ranks("cpu")
    said = (folder / "said.txt").open("w")
    training = Trainer(JOB, ranks, Language(JOB), Bytes(JOB), model_flops=0)
    rank = Rank(JOB, ranks, training, StepClock(), (folder / "samples.jsonl").open("wb"), said.write)

    def step(number: int) -> float:
        rank._take_step(PlannedStep(number, 0))
        return 0.0

    return step


def cost(step: Callable[[int], float], number: int) -> int:
    """CPU ns."""
    began = process_time_ns()
    step(number)
    return process_time_ns() - began


def pairs(one: Callable[[int], float], other: Callable[[int], float]) -> list[tuple[int, int]]:
    """CPU ns of the same step of both, each going first every other time."""
    spent: list[tuple[int, int]] = []
    for number in range(PAIRS):
        if number % 2:
            spent.append((cost(one, number), cost(other, number)))
        else:
            second = cost(other, number)
            spent.append((cost(one, number), second))
    return spent[DISCARDED:]


def show(name: str, spent: list[tuple[int, int]]) -> None:
    ratio = median(with_it / without for without, with_it in spent)
    bare_ms, ms = (median(walls) / 1e6 for walls in zip(*spent))
    print(f"{name:<22} {100 * (ratio - 1):+6.2f} %   ({ms:.3f} ms against {bare_ms:.3f} ms, {len(spent)} pairs)")


def main() -> None:
    torch.set_num_threads(1)
    print(f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, Python {platform.python_version()}, one thread")
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "first"), Path(folder, "second")
        first.mkdir()
        second.mkdir()
        show("harness", pairs(bare(), harness(first)))
        step = harness(second)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            profiler.toggle_collection_dynamic(False, [torch.profiler.ProfilerActivity.CPU])

            def captured(number: int) -> float:
                profiler.toggle_collection_dynamic(True, [torch.profiler.ProfilerActivity.CPU])
                told = step(number)
                profiler.toggle_collection_dynamic(False, [torch.profiler.ProfilerActivity.CPU])
                return told

            show("harness, profiler on", pairs(bare(), captured))


if __name__ == "__main__":
    main()
