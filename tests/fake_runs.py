"""Fake runs of the training code (`trainyard.train.fake_run`), each in a process that is forked with torch loaded."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from tests.ranks import PRELOAD
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.train.fake_run.held_memory import RankMemory

TIMEOUT_S = 240.0


def measure_rank(job: Job, rank: int) -> RankMemory:
    """Memory of one rank, as `held_memory.measure_rank` returns it, which starts a new interpreter for each rank: a
    forked process saves the seconds in which it imports torch. Raises `BadJob` if the job cannot run with fake tensors.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(job, rank, sender), daemon=True)
    process.start()
    sender.close()
    try:
        assert receiver.poll(TIMEOUT_S), f"the fake run of rank {rank} did not end in {TIMEOUT_S:g} s"
        memory, refusal = receiver.recv()
    finally:
        process.kill()
        process.join()
    if refusal:
        raise BadJob(refusal)
    return RankMemory(*memory)


def _run(job: Job, rank: int, sender: Connection) -> None:
    """Sends the memory of a rank as a tuple and an empty text, or None and the message of the job's refusal."""
    from trainyard.train.fake_run import fake_rank

    try:
        sender.send((tuple(fake_rank.measure_rank(job, rank)), ""))
    except BadJob as error:
        sender.send((None, str(error)))
