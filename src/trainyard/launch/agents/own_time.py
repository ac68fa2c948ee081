"""A rank's own time in its steps: its work without the waits for peers, by which slow ranks are detected.

On a CPU this is the CPU time of the process. On a device, the host waits for the device in a spinning loop on every
rank, so that CPU time shows no difference. There it is the time between two device events around the step, without
the time in which collectives ran on the device: in a collective every rank waits for the last one to arrive, so that
the slowest rank has the shortest collectives.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class OwnClock(Protocol):
    """Measures a rank's own time."""

    def begin(self) -> None:
        """Note the beginning of a step."""
        ...

    def end(self) -> int:
        """Note the end of the step; return the own time in ns that has become known since the last call. That of a step
        on a device becomes known later, once the device has finished it."""
        ...


class CpuClock:
    """CPU time of this process, in ns."""

    def __init__(self, read_ns: Callable[[], int] = time.process_time_ns) -> None:
        """`read_ns`: the CPU time used so far, in ns."""
        self._read_ns = read_ns
        self._begin_ns = 0

    def begin(self) -> None:
        self._begin_ns = self._read_ns()

    def end(self) -> int:
        return self._read_ns() - self._begin_ns


class DeviceEvent(Protocol):
    """A timing event on a device's stream, such as `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None:
        """Record the event on the current stream."""
        ...

    def query(self) -> bool:
        """Whether the device has reached the event."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds on the device from this event to `end_event`."""
        ...


class DeviceClock:
    """Time of a device in the steps, without its collectives. Never waits for the device.

    `new_event`: creates an event. `collective_ns`: total time that the collectives of this rank have run on the device
    so far, in ns. Collectives that overlap with computation are subtracted too, on every rank; a negative result counts
    as 0.
    """

    def __init__(self, new_event: Callable[[], DeviceEvent], collective_ns: Callable[[], int]) -> None:
        self._new_event, self._collective_ns = new_event, collective_ns
        self._begin_event: DeviceEvent | None = None
        self._steps: deque[tuple[DeviceEvent, DeviceEvent]] = deque()
        """Events at the beginning and end of the steps that the device has not finished, oldest first."""
        self._device_ns = 0
        """Time between the events of all finished steps."""
        self._returned_ns = 0
        """Own time that was returned so far."""

    def begin(self) -> None:
        self._begin_event = self._new_event()
        self._begin_event.record()

    def end(self) -> int:
        if self._begin_event is not None:
            end_event = self._new_event()
            end_event.record()
            self._steps.append((self._begin_event, end_event))
            self._begin_event = None
        while self._steps and self._steps[0][1].query():
            begin_event, end_event = self._steps.popleft()
            self._device_ns += round(begin_event.elapsed_time(end_event) * 1e6)
        own_ns = max(0, self._device_ns - self._collective_ns() - self._returned_ns)
        self._returned_ns += own_ns
        return own_ns


class CollectiveTimer:
    """Adds up the time that collectives run on the device, as torch reports it after each of them.

    torch calls a hook when a collective of a process group has ended, in a thread of that group, with the duration
    between device events. That needs NCCL and TORCH_NCCL_ENABLE_TIMING=1; without, the total remains 0.
    """

    def __init__(self) -> None:
        """No collective has been reported yet."""
        self.total_ns = 0
        self._lock = threading.Lock()
        """Each process group reports in a thread of its own."""

    def watch(self, group: object) -> bool:
        """Count the collectives of a process group from now on. Returns False if its backend does not report them."""
        try:
            group._register_on_completion_hook(self._add)  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):  # torch's DistBackendError is a RuntimeError
            return False
        return True

    def _add(self, work: object) -> None:
        """Add the duration of a collective, a `datetime.timedelta`, if torch has measured it."""
        duration = getattr(work, "active_duration", None)
        if duration is not None:
            with self._lock:
                self.total_ns += round(duration.total_seconds() * 1e9)
