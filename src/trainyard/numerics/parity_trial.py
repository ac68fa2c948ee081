"""Trains a few steps of a job on this machine's cores, without storing a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from trainyard import plugins
from trainyard.errors import RankDied
from trainyard.job import Job
from trainyard.launch.fork_ranks import run_ranks
from trainyard.train.rules import device_rules, memory_rules
from trainyard.train.step.outcome import Outcome

_PRELOAD = [
    f"trainyard.train.{part}"
    for part in (
        "step.trainer",
        "model.language_task",
        "parallel.tensor_parallel",
        "parallel.context_parallel",
        "parallel.expert_parallel",
    )
]


class Trial(NamedTuple):
    """`outcomes`: loss and gradient norm of each step, equal on all ranks; `seconds`: wall time from start to end."""

    outcomes: Sequence[Outcome]
    seconds: float


def trial(job: Job, steps: int, patience_s: float = 240.0) -> Trial:
    """Trains `steps` steps on `job.layout.ranks` processes with one thread each.

    Raises `BadJob` if the job cannot be trained, `RankDied` with the error of the first rank that died, if ranks report
    different losses, or after `patience_s` seconds.
    """
    workload, host = plugins.load("workloads", job.workload), plugins.load("vendors", "cpu").devices()[0]
    workload.expect(job)
    device_rules.check(job.recipe, "cpu")
    memory_rules.check(job, workload.weights(job), host.memory_bytes, host.name, shared=True)
    began = time.monotonic()
    outcomes = run_ranks(job.layout.ranks, partial(_train, job, steps), _PRELOAD, patience_s)
    differing_ranks = [rank for rank, rank_outcomes in enumerate(outcomes) if rank_outcomes != outcomes[0]]
    if differing_ranks:
        raise RankDied(
            f"ranks {differing_ranks} and rank 0 report different losses: "
            f"{outcomes[differing_ranks[0]]}, {outcomes[0]}."
        )
    return Trial(outcomes[0], time.monotonic() - began)


def _train(job: Job, steps: int, rendezvous_file: str) -> list[Outcome]:
    """Trains `steps` steps of the job on this rank's CPU and returns the outcome of each: loss and gradient norm. Runs
    in the process of a rank. `rendezvous_file`: the file by which the ranks find each other."""
    import torch

    from trainyard.train import process_group

    torch.set_num_threads(1)
    with process_group.process_group_context(process_group.find_ranks("cpu"), rendezvous_file):
        training = plugins.load("workloads", job.workload).build(job, "cpu")
        return [training(step) for step in range(steps)]
