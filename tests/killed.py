"""Work in a process of its own that is killed at a fault point: see trainyard/fault_points.py."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tests.ranks import PRELOAD
from trainyard import fault_points
from trainyard.fault_points import POINTS, VARIABLE

_NEVER = f"{next(iter(POINTS))}:{10**9}"
PATIENCE_S = 120.0


def arrivals(work: Callable[..., object], *given: Any, environment: Mapping[str, str] | None = None) -> dict[str, int]:
    """How often undisturbed work arrives at each point, in a process that does it."""
    return _in_process(_NEVER, work, given, environment)


def kill_at(
    point: str, number: int, work: Callable[..., object], *given: Any, environment: Mapping[str, str] | None = None
) -> None:
    """Does the work in a process that is killed at that arrival; it is an error if it ends otherwise."""
    end = _in_process(f"{point}:{number}", work, given, environment)
    assert end == -signal.SIGKILL, f"{point}:{number} was not reached: {end}"


def each(reached: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Every arrival, as (point, number)."""
    for point, count in reached.items():
        for number in range(1, count + 1):
            yield point, number


def _in_process(at: str, work: Callable[..., object], given: tuple[Any, ...], more: Mapping[str, str] | None) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    reading, writing = context.Pipe(duplex=False)
    environment = {**(more or {}), VARIABLE: at}
    process = context.Process(target=_child, args=(writing, environment, work, given), daemon=True)
    process.start()
    writing.close()
    try:
        assert reading.poll(PATIENCE_S), f"{at}: nothing ended in {PATIENCE_S:g} s"
        good, result = reading.recv()
        assert good, result
        return result
    except EOFError:
        process.join()
        return process.exitcode
    finally:
        process.kill()
        process.join()


def _child(pipe: Connection, environment: Mapping[str, str], work: Callable[..., object], given: Any) -> None:
    os.environ.pop("TRAINYARD_INDEX", None)  # as it was when the process was started that this one is forked from
    os.environ.update(environment)
    try:
        work(*given)
        pipe.send((True, dict(fault_points._arrivals)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
