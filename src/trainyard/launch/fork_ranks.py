"""Run a function on several ranks of this machine, forked from a process that has the slow imports loaded.

Forking takes milliseconds, where starting a rank takes seconds of importing. Nothing is stored.
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

from trainyard.errors import RankDied, TrainyardError
from trainyard.launch.supervisor.device_errors import describe_device_error
from trainyard.launch.supervisor.failure_report import tail
from trainyard.pdeathsig import die_with_parent

Result = TypeVar("Result")
Work = Callable[[str], Result]
"""Called with the URL for the rendezvous of its ranks; RANK, WORLD_SIZE etc. are in the environment, as with
torchrun."""


def run_ranks(
    ranks: int,
    work: Work[Result],
    preload: Sequence[str],
    timeout_s: float,
    variables: Mapping[str, str] | None = None,
) -> list[Result]:
    """Run `work` on `ranks` processes and return its results by rank.

    `preload`: modules that are imported once for all; `timeout_s`: seconds for all ranks together; `variables`:
    environment variables (name -> value) for the processes, in addition to RANK etc. All processes are killed at the
    end.

    Raises `RankDied` with the error of the first rank that fails, or after `timeout_s` seconds.
    """
    deadline_s = time.monotonic() + timeout_s
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        pipes: list[Any] = []
        processes: list[Any] = []
        try:
            for rank in range(ranks):
                receiver, sender = context.Pipe(duplex=False)
                rank_variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
                environment = {name: str(value) for name, value in rank_variables.items()} | dict(variables or {})
                process = context.Process(target=_run_rank, args=(work, environment, Path(folder), sender))
                process.start()
                processes.append(process)
                sender.close()
                pipes.append(receiver)
            return _receive_results(pipes, deadline_s, Path(folder))
        finally:
            for process in processes:
                process.kill()
                process.join()


def _receive_results(pipes: list[Any], deadline_s: float, folder: Path) -> list[Any]:
    """Receive one result from each rank's pipe; return them by rank.

    A rank sends (False, result), or (True, description) if it failed. `deadline_s`: monotonic time; `folder`: that of
    the ranks' logs. Raises `RankDied` for a rank that failed or ended, and after the deadline.
    """
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = [rank for rank in range(len(pipes)) if rank not in results]
        ready = wait([pipes[rank] for rank in waiting], timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise RankDied(
                f"ranks {', '.join(map(str, waiting))} of a trial did not end in time.",
                "If they use devices, one of them may hang: read the Xid errors in the kernel log, and run nvidia-smi.",
            )
        for rank in [rank for rank in waiting if pipes[rank] in ready]:
            try:
                died, payload = pipes[rank].recv()
            except EOFError:
                died, payload = True, tail(_log(folder, rank)) or "it wrote no error message"
            if died:
                raise RankDied(f"rank {rank} of a trial died: {payload}")
            results[rank] = payload
    return [results[rank] for rank in range(len(pipes))]


def _describe_failure(error: BaseException) -> str:
    """The message of an error of the machine or the input, with advice; the traceback of any other."""
    if isinstance(error, TrainyardError):
        return str(error)
    if advice := describe_device_error(error):
        return "".join(traceback.format_exception_only(error)) + advice
    return "".join(traceback.format_exception(error))


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


def _run_rank(work: Work[Any], environment: Mapping[str, str], folder: Path, pipe: Connection) -> None:
    """Run `work` in the process of one rank, and send (False, result), or (True, description) if it failed.

    Then waits to be killed, so that no peer sees this rank leave. `environment`: of the rank, with torchrun's
    variables; `folder`: for its log and the rendezvous.
    """
    die_with_parent(os.getppid(), signal.SIGKILL)
    with _log(folder, int(environment["RANK"])).open("wb") as log:
        os.dup2(log.fileno(), 2)  # keeps torch's warnings out of our output
    os.environ.update(environment)
    try:
        pipe.send((False, work(f"file://{folder}/meet")))
    except BaseException as error:
        pipe.send((True, _describe_failure(error)))
    signal.pause()
