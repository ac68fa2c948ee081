"""Trains a few steps of a job on this machine's cores or devices, without storing a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from trainyard import plugins
from trainyard.errors import RankDied
from trainyard.job import Job
from trainyard.launch.fork_ranks import run_ranks
from trainyard.train.rules import device_rules, memory_rules
from trainyard.train.step.outcome import Outcome, StepResult

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
    """`outcomes`: loss and gradient norm of each step, equal on all ranks; `seconds`: wall time from start to end;
    `replicas`: outcomes of the same training with every sum jittered by one unit in the last place."""

    outcomes: Sequence[Outcome]
    seconds: float
    replicas: Sequence[Sequence[Outcome]] = ()


def trial(job: Job, steps: int, replicas: int = 0, patience_s: float = 240.0, vendor: str = "cpu") -> Trial:
    """Trains `steps` steps on `job.layout.ranks` processes with one thread each, then as often with jitter as there are
    `replicas`: their seeds are 0, 1, and so on. `vendor`: of the devices that the ranks use, one each unless `cpu`.

    Raises `BadJob` if the job cannot be trained, `RankDied` with the error of the first rank that died, if ranks report
    different losses, or after `patience_s` seconds for each training.
    """
    workload, device = plugins.load("workloads", job.workload), plugins.load("vendors", vendor).devices()[0]
    workload.expect(job)
    device_rules.check(job.recipe, vendor)
    memory_rules.check(job, workload.weights(job), device.memory_bytes, device.name, shared=vendor == "cpu")
    began = time.monotonic()
    trainings = run_ranks(
        job.layout.ranks, partial(_train, job, steps, replicas, vendor), _PRELOAD, patience_s * (1 + replicas)
    )
    outcomes = [rank_trainings[0] for rank_trainings in trainings]
    differing_ranks = [rank for rank, rank_outcomes in enumerate(outcomes) if rank_outcomes != outcomes[0]]
    if differing_ranks:
        raise RankDied(
            f"ranks {differing_ranks} and rank 0 report different losses: "
            f"{outcomes[differing_ranks[0]]}, {outcomes[0]}."
        )
    return Trial(outcomes[0], time.monotonic() - began, trainings[0][1:])


def _train(job: Job, steps: int, replicas: int, vendor: str, rendezvous_file: str) -> list[list[Outcome]]:
    """Trains `steps` steps of the job on this rank's device and returns the outcome of each: loss and gradient
    norm; then those of each jittered replica. Runs in the process of a rank. `rendezvous_file`: the file by which the
    ranks find each other."""
    import torch

    from trainyard.numerics.ulp_jitter import UlpJitter
    from trainyard.train import process_group

    torch.set_num_threads(1)
    workload = plugins.load("workloads", job.workload)
    trainings: list[list[Outcome]] = []
    with process_group.process_group_context(process_group.find_ranks(vendor), rendezvous_file):
        for jitter in (nullcontext(), *map(UlpJitter, range(replicas))):
            training = workload.build(job, vendor)
            with jitter:
                trainings.append([_outcome(training(step)) for step in range(steps)])
    return trainings


def _outcome(result: StepResult) -> Outcome:
    """The numbers of a step, without tensors of a device, which cannot be sent to another process."""
    return Outcome(float(result.loss), float(result.grad_norm))
