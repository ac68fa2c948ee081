"""The clock that times steps: it waits for the device before it reads the time."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple


def _wait_for_nothing() -> None:
    pass


class StepClock(NamedTuple):
    """`synchronize`: waits for the device. `read_ns`: returns monotonic time in ns. Tests pass their own."""

    synchronize: Callable[[], None] = _wait_for_nothing
    read_ns: Callable[[], int] = perf_counter_ns

    def now(self) -> int:
        """Monotonic time in ns, read after all work launched so far is done."""
        self.synchronize()
        return self.read_ns()
