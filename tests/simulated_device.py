"""A simulated device with a stream, which stands for `torch.cuda` in tests of timing.

Host and device have a time each: launching takes host time only, and the stream executes its work in order, each piece
from the moment at which the piece before it has ended and it was launched. Events follow torch: they have no distance
before the device has passed both.
"""

from __future__ import annotations


class Event:
    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.passed_ns: int | None = None

    def record(self, stream: object = None) -> None:
        self.passed_ns = max(self.device.host_ns, self.device.free_ns)

    def query(self) -> bool:
        assert self.passed_ns is not None
        return self.device.host_ns >= self.passed_ns

    def synchronize(self) -> None:
        assert self.passed_ns is not None
        self.device.host_ns = max(self.device.host_ns, self.passed_ns)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, as in torch."""
        if not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        assert self.passed_ns is not None
        assert end.passed_ns is not None
        return (end.passed_ns - self.passed_ns) / 1e6


class SimulatedDevice:
    """`host_ns`: the host's clock. `free_ns`: when the device has executed all launched work."""

    def __init__(self) -> None:
        self.host_ns = self.free_ns = 0
        self.captures = False
        self.waits = 0

    def launch(self, host_ns: int, device_ns: int) -> None:
        """The host takes `host_ns` to launch work that the device executes in `device_ns`."""
        self.host_ns += host_ns
        self.free_ns = max(self.host_ns, self.free_ns) + device_ns

    def synchronize(self, *_: object) -> None:
        self.waits += 1
        self.host_ns = max(self.host_ns, self.free_ns)

    def read_ns(self) -> int:
        return self.host_ns

    # The part of torch.cuda that timing uses.

    def Event(self, enable_timing: bool = False) -> Event:
        assert enable_timing
        return Event(self)

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: int) -> object:
        assert device == 0
        return self

    def is_current_stream_capturing(self) -> bool:
        return self.captures
