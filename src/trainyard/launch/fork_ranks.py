"""Some work on several processes of this machine at once, forked from one that has loaded what is slow to load.

Forking costs milliseconds where starting a rank costs seconds of importing. Nothing is kept of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from trainyard.errors import RankDied
from trainyard.launch.supervisor.failure_report import tail
from trainyard.pdeathsig import die_with_parent

Said = TypeVar("Said")
Work = Callable[[str], Said]
"""Is given the URL at which its processes may meet; its place among them is in the environment, as torchrun has it."""


def run_ranks(
    ranks: int, work: Work[Said], preload: Sequence[str], patience_s: float, given: Mapping[str, str] | None = None
) -> list[Said]:
    """What `work` returned, by rank. `given`: more of the environment.

    Raises `RankDied` with the first rank's last words, or after `patience_s`.
    """
    until = time.monotonic() + patience_s
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        pipes: list[Any] = []
        processes: list[Any] = []
        try:
            for rank in range(ranks):
                reading, writing = context.Pipe(duplex=False)
                places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                around = {name: str(value) for name, value in places.items()} | dict(given or {})
                process = context.Process(target=_rank, args=(work, around, Path(folder), writing))
                process.start()
                processes.append(process)
                writing.close()
                pipes.append(reading)
            return _gather(pipes, until, Path(folder))
        finally:
            for process in processes:
                process.kill()
                process.join()


def _gather(pipes: list[Any], until: float, folder: Path) -> list[Any]:
    told: dict[int, Any] = {}
    while len(told) < len(pipes):
        waiting = [rank for rank in range(len(pipes)) if rank not in told]
        ready = wait([pipes[rank] for rank in waiting], timeout=max(0.0, until - time.monotonic()))
        if not ready:
            raise RankDied(f"ranks {waiting} of a trial did not end in time.")
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            try:
                died, said = pipes[rank].recv()
            except EOFError:
                died, said = True, tail(_log(folder, rank)) or "it left no last words"
            if died:
                raise RankDied(f"rank {rank} of a trial died: {said}")
            told[rank] = said
    return [told[rank] for rank in range(len(pipes))]


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


def _rank(work: Work[Any], around: Mapping[str, str], folder: Path, pipe: Connection) -> None:
    """Says what its work returned, or its traceback; then waits for its end, so that no peer sees it leave."""
    die_with_parent(os.getppid(), signal.SIGKILL)
    with _log(folder, int(around["RANK"])).open("wb") as log:
        os.dup2(log.fileno(), 2)  # torch's warnings would stand between our lines
    os.environ.update(around)
    try:
        pipe.send((False, work(f"file://{folder}/meet")))
    except BaseException:
        pipe.send((True, traceback.format_exc()))
    signal.pause()
