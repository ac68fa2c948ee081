"""Where the work of many ranks is done: in this process, in processes of this machine, or on a Ray cluster.

An engine is a context that gives a function `run(work, items)`: the results of `work` on each item, in order. `work`
and the items travel to other processes, so they are functions of modules and plain values.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from trainyard import words
from trainyard.errors import EnvironmentFailed, MissingLibrary, WorkerDied

_T = TypeVar("_T")
_R = TypeVar("_R")

_OBJECTS = 100 * 2**20  # bytes of Ray's object store: surveys are small, columns lie in files


class RunEngine(Protocol):
    def __call__(self, work: Callable[[_T], _R], items: Sequence[_T], /) -> list[_R]: ...


@contextmanager
def serial(workers: int) -> Iterator[RunEngine]:
    """One after another, in this process."""
    yield lambda work, items: [work(item) for item in items]


@contextmanager
def processes(workers: int) -> Iterator[RunEngine]:
    """In `workers` processes of this machine. Raises `WorkerDied` where one dies."""
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:

        def run(work: Callable[[_T], _R], items: Sequence[_T], /) -> list[_R]:
            waiting = [pool.submit(work, item) for item in items]
            try:
                return [future.result() for future in waiting]
            except BrokenProcessPool as error:
                raise WorkerDied(
                    f"one of {workers} worker processes died.", "Was memory short? --engine serial needs the least."
                ) from error
            finally:
                for future in waiting:
                    future.cancel()

        yield run


@contextmanager
def over_ray(workers: int) -> Iterator[RunEngine]:
    """As tasks of the Ray cluster that runs (RAY_ADDRESS names another), or of one of `workers` processes started for
    the while. Raises `MissingLibrary` without Ray."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingLibrary("--engine ray needs Ray.", "Install it: pip install 'trainyard[ray]'.") from error
    joined = ray.is_initialized()
    if not joined:
        _join_or_start(ray, workers)
    task = ray.remote(max_retries=0)(_done)  # a plain function, as Ray wants it
    try:

        def run(work: Callable[[_T], _R], items: Sequence[_T], /) -> list[_R]:
            waiting = [task.remote(work, item) for item in items]
            try:
                return ray.get(waiting)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise EnvironmentFailed(f"Ray: {error}") from error

        yield run
    finally:
        if not joined:
            ray.shutdown()


def _done(work: Callable[[_T], _R], item: _T) -> _R:
    return work(item)


def _join_or_start(ray: Any, workers: int) -> None:
    quiet = {"logging_level": "error", "log_to_driver": False}
    try:
        ray.init(address="auto", **quiet)
    except ConnectionError:
        # No figures about the use of a cluster leave the machine because of us.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=workers, object_store_memory=_OBJECTS, include_dashboard=False, **quiet)


ENGINES: Mapping[str, Callable[[int], AbstractContextManager[RunEngine]]] = {
    "serial": serial,
    "processes": processes,
    "ray": over_ray,
}


def engine(name: str, workers: int) -> AbstractContextManager[RunEngine]:
    """Raises `UnknownName`."""
    return ENGINES[words.check(name, ENGINES, "engine")](workers)
