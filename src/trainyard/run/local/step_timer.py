"""Times steps without waiting for the device: events in the device's stream mark the ends of a step, and their distance
is read once the device has passed them. On a CPU the marks are readings of the host's clock. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns, sleep
from typing import Any, Generic, Literal, NamedTuple, TypeVar

Result = TypeVar("Result")
Clock = Literal["host", "events"]

_WAIT_S = 30.0
"""Seconds that the end of a run waits for the device to pass the last marks."""
_POLL_S = 0.001


class Mark(NamedTuple):
    """An end of a step. `host_ns`: the host's clock when it was set. `event`: recorded in the device's stream; None
    without a device."""

    host_ns: int
    event: Any = None


class StepTimer:
    """Sets marks and reads the time between two of them.

    With a device, time is measured between CUDA events on its stream. The host runs ahead of the device, so its clock
    would measure only launching.
    """

    def __init__(self, device_module: Callable[[], Any], read_ns: Callable[[], int] = perf_counter_ns) -> None:
        """`device_module`: returns `torch.cuda`, or None for a process without a device; called at each mark.
        `read_ns`: monotonic time of the host in ns."""
        self._device_module, self.read_ns = device_module, read_ns
        self._device = -1
        """Index of the device whose stream is marked, the current one at the first mark; -1 before that."""

    def mark(self) -> Mark:
        """Set a mark after all work launched so far in the device's current stream. Does not wait."""
        cuda = self._device_module()
        if cuda is None:
            return Mark(self.read_ns())
        if self._device < 0:
            self._device = cuda.current_device()
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self._device))  # events of two devices have no distance
        return Mark(self.read_ns(), event)

    def is_capturing(self) -> bool:
        """Whether the current stream is captured into a graph: its work is not executed now, and has no time."""
        cuda = self._device_module()
        return cuda is not None and cuda.is_current_stream_capturing()


def clock_between(begin: Mark, end: Mark) -> Clock:
    """The clock of `elapsed_ns`: that of the host if one of the marks was set before the device was in use."""
    return "host" if begin.event is None or end.event is None else "events"


def has_passed(begin: Mark, end: Mark) -> bool:
    """Whether `elapsed_ns` can be read: the device has executed all work before both marks."""
    return clock_between(begin, end) == "host" or (begin.event.query() and end.event.query())


def elapsed_ns(begin: Mark, end: Mark) -> int:
    """Time from `begin` to `end` in ns, by the clock of `clock_between`. Raises RuntimeError if the device has not
    passed the marks."""
    if clock_between(begin, end) == "host":
        return end.host_ns - begin.host_ns
    return round(begin.event.elapsed_time(end.event) * 1e6)  # torch returns ms


def wait_for(mark: Mark) -> bool:
    """Wait for the device to pass `mark`; return whether the host had to wait."""
    if mark.event is None or mark.event.query():
        return False
    mark.event.synchronize()
    return True


class StepTime(NamedTuple):
    """The time of a step by `clock`, and the mark at its end. `has_just_ended`: the host has waited until it ended."""

    wall_ns: int
    clock: Clock
    end: Mark
    has_just_ended: bool = False


class PendingSteps(Generic[Result]):
    """Steps whose time is not known yet, in the order in which they ended."""

    def __init__(self, resolve: Callable[[Result, StepTime], object]) -> None:
        """`resolve`: called with a step's `step` and its time, once that is known."""
        self._resolve = resolve
        self._steps: deque[tuple[Mark, Mark, Result]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, begin: Mark, end: Mark, step: Result) -> None:
        """Add a step that began and ended at these marks."""
        self._steps.append((begin, end, step))

    def drain(self) -> None:
        """Resolve the steps that the device has ended, without waiting for others."""
        while self._steps and has_passed(*self._steps[0][:2]):
            self._resolve_first()

    def _resolve_first(self, has_just_ended: bool = False) -> None:
        begin, end, step = self._steps.popleft()
        self._resolve(step, StepTime(elapsed_ns(begin, end), clock_between(begin, end), end, has_just_ended))

    def limit(self, steps: int) -> None:
        """Wait for the device until at most `steps` steps are pending; resolve the others."""
        while len(self._steps) > steps:
            self._resolve_first(has_just_ended=wait_for(self._steps[0][1]))
            self.drain()

    def finish(self, wait_s: float = _WAIT_S) -> int:
        """Resolve all steps; return the number of those that the device did not end within `wait_s` seconds, which are
        dropped."""
        for _ in range(max(1, round(wait_s / _POLL_S))):
            self.drain()
            if not self._steps:
                return 0
            sleep(_POLL_S)
        dropped = len(self._steps)
        self._steps.clear()
        return dropped
