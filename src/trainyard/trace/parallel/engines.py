"""Execution engines for the work of many ranks: this process, processes on this machine, or a Ray cluster.

`trace/measure.py` uses them for reading and booking the files of many ranks. An engine is a context manager for a
function `run(work, items)`, which returns the results of `work` on each item, in order. `work` and the items are sent
to other processes: `work` must be a module-level function or a `partial` of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from trainyard import words
from trainyard.errors import EnvironmentFailed, MissingLibrary, WorkerDied

_T = TypeVar("_T")
_R = TypeVar("_R")

_OBJECT_STORE_BYTES = 100 * 2**20  # bytes of Ray's object store: surveys are small, columns lie in files


class RunEngine(Protocol):
    def __call__(self, work: Callable[[_T], _R], items: Sequence[_T], /) -> list[_R]: ...


@contextmanager
def serial(workers: int) -> Iterator[RunEngine]:
    """Runs items one after another in this process."""
    yield lambda work, items: [work(item) for item in items]


@contextmanager
def processes(workers: int) -> Iterator[RunEngine]:
    """Runs items in `workers` processes on this machine. Raises `WorkerDied` if one dies."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:

        def run(work: Callable[[_T], _R], items: Sequence[_T], /) -> list[_R]:
            """The results of `work` in the processes of the pool. Raises `WorkerDied` if one of them dies; cancels the
            rest on any error."""
            waiting = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in waiting]
            except BrokenProcessPool as error:
                raise WorkerDied(
                    f"one of {workers} worker processes died.",
                    "If it ran out of memory, use --engine serial, which needs the least.",
                ) from error
            finally:
                for future in waiting:
                    future.cancel()

        yield run


@contextmanager
def over_ray(workers: int) -> Iterator[RunEngine]:
    """Runs items as tasks on the running Ray cluster (or the one at RAY_ADDRESS), else on a temporary one of `workers`
    processes, which is shut down at the end. Raises `MissingLibrary` without Ray."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingLibrary("--engine ray needs Ray.", "Install it: pip install 'trainyard[ray]'.") from error
    was_connected = ray.is_initialized()
    if not was_connected:
        _join_or_start(ray, workers)
    task = ray.remote(max_retries=0)(_call_work)  # Ray requires a plain function
    try:

        def run(work: Callable[[_T], _R], items: Sequence[_T], /) -> list[_R]:
            """The results of `work` in Ray tasks. Raises the error of `work` itself, or `EnvironmentFailed` for one of
            Ray's."""
            waiting = [task.remote(work, item) for item in items]
            try:
                return ray.get(waiting)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise EnvironmentFailed(f"Ray: {error}") from error

        yield run
    finally:
        if not was_connected:
            ray.shutdown()


def _call_work(work: Callable[[_T], _R], item: _T) -> _R:
    return work(item)


def _join_or_start(ray: Any, workers: int) -> None:
    """Connects to a running Ray cluster, else starts one with `workers` processes on this machine. `ray`: the
    module."""
    quiet = {"logging_level": "error", "log_to_driver": False}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        # A cluster started here must not send usage statistics.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local", num_cpus=workers, object_store_memory=_OBJECT_STORE_BYTES, include_dashboard=False, **quiet
        )


ENGINES: Mapping[str, Callable[[int], AbstractContextManager[RunEngine]]] = {
    "serial": serial,
    "processes": processes,
    "ray": over_ray,
}


def engine(name: str, workers: int) -> AbstractContextManager[RunEngine]:
    """The engine called `name`. Raises `UnknownName`."""
    return ENGINES[words.check(name, ENGINES, "engine")](workers)
