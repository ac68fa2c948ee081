"""Runs a function on several ranks, forked from one process that has torch loaded, and returns their results."""

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

PRELOAD = [
    "trainyard.store.exchange.push_pull", "trainyard.train.step.trainer", "trainyard.train.model.language_task",
    "trainyard.train.checkpoint.checkpoint_saver", "trainyard.train.fake_run.fake_rank",
]  # fmt: skip
"""Modules to preload: one fork server serves the whole test process, so that its first user must load them all."""


def on_ranks(world, work, *given, patience_s=120.0):
    """Runs `work(ranks, *given)` on `world` processes of one thread each; returns their results, by rank.

    The result of a rank that is killed by a signal is the negative signal number.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(world):
            reading, writing = context.Pipe(duplex=False)
            process = context.Process(target=_rank, args=(rank, world, folder, writing, work, given), daemon=True)
            process.start()
            writing.close()
            processes.append(process)
            pipes.append(reading)
        try:
            return _gather(processes, pipes, time.monotonic() + patience_s)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _gather(processes, pipes, until):
    results = {}
    while len(results) < len(pipes):
        waiting = {pipes[rank]: rank for rank in range(len(pipes)) if rank not in results}
        ready = wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
        assert ready, f"ranks {sorted(waiting.values())} did not end in time"
        for pipe in ready:
            rank = waiting[pipe]
            try:
                good, result = pipe.recv()
            except EOFError:
                processes[rank].join()
                good, result = True, processes[rank].exitcode
            assert good, f"rank {rank}: {result}"
            results[rank] = result
    return [results[rank] for rank in range(len(pipes))]


def _rank(rank, world, folder, pipe, work, given):
    import torch

    from trainyard.train import process_group

    try:
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
        here = process_group.find_ranks("cpu")
        with process_group.process_group_context(here, (Path(folder) / "meet").as_uri()):
            pipe.send((True, work(here, *given)))
            signal.pause()  # no peer sees it leave
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        signal.pause()
