"""Step time of a recommender on a CPU thread with dense and with row-wise updates of its table.

`python -m benchmarks.row_updates`. For tables of several sizes and equally many lookups, prints the median step time
with either optimizer of the table, and their ratio. The steps of both alternate, so that both meet the same load of the
machine.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Literal

import torch

from trainyard.job import Job
from trainyard.models import presets
from trainyard.recipe import Recipe
from trainyard.train.process_group import Ranks
from trainyard.train.recommender.recommender_task import Clicks, Predict
from trainyard.train.step.trainer import Trainer
from trainyard.workloads.ops import recommender_ops

ROWS = (10_000, 100_000, 1_000_000, 4_000_000)
"""Rows of the table, of 16 values each."""
BATCH, HOTS = 256, 8
DISCARDED_STEPS, STEPS = 2, 9


def trainer_of(rows: int, embedding_optimizer: Literal["same", "rowwise_adagrad"]) -> Trainer:
    """The trainer of a small recommender with one table."""
    recipe = Recipe(
        tokens_per_step=BATCH,
        micro_batch_size=BATCH,
        dataset="synthetic",
        num_workers=0,
        embedding_optimizer=embedding_optimizer,
    )
    sizes = {**(presets.load("tiny-dlrm").sizes or {}), "rows": [rows], "hots": [HOTS]}
    job = Job(workload="recommender", sizes=sizes, recipe=recipe)
    checked = recommender_ops.check(job)
    ranks = Ranks(0, 0, 1, 1, "cpu", torch.device("cpu"))
    return Trainer(job, ranks, Predict(job, checked), Clicks(job, checked), model_flops=0)


def step_ms(trainer: Trainer, step: int) -> float:
    """Milliseconds of a step, with its batch."""
    began = time.perf_counter()
    trainer(step)
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{BATCH} samples of {HOTS} ids, rows of 16 values, 1 thread, torch {torch.__version__}")
    print(f"{'rows':>12} {'adamw (ms)':>12} {'rowwise_adagrad (ms)':>22} {'ratio':>8}")
    for rows in ROWS:
        trainers = [trainer_of(rows, "same"), trainer_of(rows, "rowwise_adagrad")]
        times = [[step_ms(trainer, step) for trainer in trainers] for step in range(DISCARDED_STEPS + STEPS)]
        dense, by_row = (median(column) for column in zip(*times[DISCARDED_STEPS:]))
        print(f"{rows:12,} {dense:12.2f} {by_row:22.2f} {dense / by_row:8.1f}", flush=True)


if __name__ == "__main__":
    main()
