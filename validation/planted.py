"""One rank of a run with an injected delay: `python -m validation.planted FOLDER PLANT MS`.

Started by torch's launcher. PLANT is `straggler` (rank 1 sleeps before the step), `loader` (every rank waits for its
batch) or `host` (every rank sleeps before the step). Only steps with odd numbers are delayed. The rest is
`trainyard.run.local.worker`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch.profiler import record_function

from trainyard import job_file, plugins
from trainyard.run.local.step_clock import StepClock
from trainyard.run.local.worker import Rank
from trainyard.train.process_group import find, joined, vendor_here
from trainyard.train.step.outcome import About, Outcome, Training

SPANS = {"straggler": "slow", "loader": "enumerate(DataLoader)#slow.__next__", "host": "slow"}
"""How the trace names each plant's sleep."""


class Planted:
    """A `Training` whose odd steps begin with a sleep of `ms` on the ranks that `plant` names."""

    def __init__(self, training: Training, plant: str, ms: int, rank: int) -> None:
        self.training = training
        self.span = SPANS[plant]
        self.seconds = ms / 1e3 if plant != "straggler" or rank == 1 else 0.0

    def __call__(self, step: int) -> Outcome:
        with record_function(self.span):
            time.sleep(self.seconds * (step % 2))
        return self.training(step)

    def about(self) -> About:
        return self.training.about()


def main(folder: Path, plant: str, ms: int) -> None:
    job = job_file.load(folder / "job.toml")
    torch.set_num_threads(1)  # threads that wait for each other are very slow on a machine with other work
    ranks = find(vendor_here("cpu"))
    with joined(ranks), (folder / f"rank{ranks.rank}.jsonl").open("wb") as log:
        training: Training = plugins.load("workloads", job.workload).build(job, ranks.vendor)
        planted = Planted(training, plant, ms, ranks.rank)
        Rank(job, ranks, planted, StepClock(), log, lambda _: None).run(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
