"""A few steps of a job on this machine's cores, ranks forked from one process that has torch loaded: no run is kept.

Forking costs milliseconds where starting a rank costs seconds of importing; the ranks meet through a file.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from trainyard import plugins
from trainyard.errors import RankDied
from trainyard.job import Job
from trainyard.launch.failure import tail
from trainyard.launch.orphan import die_with_parent
from trainyard.train.outcome import Outcome
from trainyard.train.rules import device, memory

_PRELOAD = [
    f"trainyard.train.{part}"
    for part in ("trainer", "language", "parallel.tensor", "parallel.context", "parallel.expert")
]


class Trial(NamedTuple):
    """What every rank said of every step, and how long it took from start to end."""

    outcomes: Sequence[Outcome]
    seconds: float


def trial(job: Job, steps: int, patience_s: float = 240.0) -> Trial:
    """Trains `steps` steps on `job.layout.ranks` processes of one thread each.

    Raises `BadJob` for what cannot be trained, `RankDied` with the first rank's last words or after `patience_s`.
    """
    workload, host = plugins.load("workloads", job.workload), plugins.load("vendors", "cpu").devices()[0]
    workload.expect(job)
    device.check(job.recipe, "cpu")
    memory.check(job, workload.weights(job), host.memory_bytes, host.name, shared=True)
    began = time.monotonic()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    ranks = job.layout.ranks
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        pipes: list[Any] = []
        processes: list[Any] = []
        try:
            for rank in range(ranks):
                reading, writing = context.Pipe(duplex=False)
                process = context.Process(target=_rank, args=(job, rank, steps, Path(folder), writing))
                process.start()
                processes.append(process)
                writing.close()
                pipes.append(reading)
            told = _gather(pipes, began + patience_s, Path(folder))
        finally:
            for process in processes:
                process.kill()
                process.join()
    return Trial(told, time.monotonic() - began)


def _gather(pipes: list[Any], until: float, folder: Path) -> list[Outcome]:
    """What rank 0 says, once all have said the same."""
    told: dict[int, list[Outcome]] = {}
    while len(told) < len(pipes):
        waiting = [rank for rank in range(len(pipes)) if rank not in told]
        ready = wait([pipes[rank] for rank in waiting], timeout=max(0.0, until - time.monotonic()))
        if not ready:
            raise RankDied(f"ranks {waiting} of a trial did not end in time.")
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            try:
                said = pipes[rank].recv()
            except EOFError:
                said = tail(_log(folder, rank)) or "it left no last words"
            if isinstance(said, str):
                raise RankDied(f"rank {rank} of a trial died: {said}")
            told[rank] = said
    different = [rank for rank in told if told[rank] != told[0]]
    if different:
        raise RankDied(f"ranks {different} report other losses than rank 0: {told[different[0]]}, {told[0]}.")
    return told[0]


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


def _rank(job: Job, rank: int, steps: int, folder: Path, pipe: Connection) -> None:
    """Says its outcomes, or its traceback; then waits for its end, so that no peer sees it leave."""
    import torch

    from trainyard.train import ranks

    die_with_parent(os.getppid(), signal.SIGKILL)
    with _log(folder, rank).open("wb") as log:
        os.dup2(log.fileno(), 2)  # torch's warnings would stand between our lines
    try:
        torch.set_num_threads(1)
        world = str(job.layout.ranks)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
        with ranks.joined(ranks.find("cpu"), f"file://{folder}/meet"):
            training = plugins.load("workloads", job.workload).build(job, "cpu")
            pipe.send([training(step) for step in range(steps)])
            signal.pause()
    except BaseException:
        pipe.send(traceback.format_exc())
        signal.pause()
