"""Simulated streams of a device, which stand for `torch.cuda` in tests of the order of asynchronous work.

Work is launched into a stream and executed only when a thread waits for it. Each stream is in order; of two streams
whose next pieces of work may both run, the one that was created first, or the one created last, runs as far as it can.
A missing dependency thus shows as wrong values under one of the two orders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, local


class Event:
    """As in torch, an event stands for its last `record`; waiting for one never recorded does nothing."""

    def __init__(self, device: SimulatedStreams) -> None:
        self.device = device
        self.reached: list[bool] = [True]

    def record(self, stream: Stream | None = None) -> None:
        reached = [False]
        self.reached = reached
        self.device.launch(lambda: reached.__setitem__(0, True), stream)

    def query(self) -> bool:
        return self.reached[0]

    def synchronize(self) -> None:
        self.device.run_until(lambda: self.reached[0])


class Stream:
    def __init__(self, device: SimulatedStreams) -> None:
        self.device = device
        self.work: deque[Callable[[], bool]] = deque()
        """Each returns whether it was executed; False while it must wait for another stream."""

    def wait_event(self, event: Event) -> None:
        reached = event.reached
        with self.device.lock:
            self.work.append(lambda: reached[0])

    def wait_stream(self, stream: Stream) -> None:
        event = Event(self.device)
        event.record(stream)
        self.wait_event(event)


class SimulatedStreams:
    """`newest_first`: whether the stream created last runs first. Threads have a current stream each."""

    def __init__(self, newest_first: bool) -> None:
        self.newest_first, self.lock, self._thread = newest_first, RLock(), local()
        self.streams: list[Stream] = []
        self.default = self.Stream()

    def launch(self, work: Callable[[], object], stream: Stream | None = None) -> None:
        """Launches work into a stream, the current one if None."""
        with self.lock:
            (stream or self.current_stream()).work.append(lambda: (work(), True)[1])

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Executes work until `reached`, at least all that may run before it in the order of this device."""
        with self.lock:
            while self._run_one():
                pass
            assert reached(), "streams wait for each other, or for work that was never launched"

    def _run_one(self) -> bool:
        for stream in reversed(self.streams) if self.newest_first else self.streams:
            if stream.work and stream.work[0]():
                stream.work.popleft()
                return True
        return False

    # The part of torch.cuda that orders work.

    def Stream(self, device: object = None) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    def Event(self, enable_timing: bool = False) -> Event:
        return Event(self)

    def current_stream(self, device: object = None) -> Stream:
        return getattr(self._thread, "stream", self.default)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = before

    def synchronize(self, device: object = None) -> None:
        self.run_until(lambda: not any(stream.work for stream in self.streams))
