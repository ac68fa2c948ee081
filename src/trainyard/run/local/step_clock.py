"""The clock that steps are timed by: it looks at the time when the device has done its work."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple


def _nothing() -> None:
    pass


class StepClock(NamedTuple):
    """`synchronize` waits for the device; `look` gives nanoseconds since some fixed moment. Tests pass their own."""

    synchronize: Callable[[], None] = _nothing
    look: Callable[[], int] = perf_counter_ns

    def now(self) -> int:
        self.synchronize()
        return self.look()
