"""A rank's own time: device events of simulated devices, of which one computes longer than its peers."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from trainyard.launch.agents.own_time import CollectiveTimer, CpuClock, DeviceClock
from trainyard.launch.agents.rank_progress import HeartbeatBoard
from trainyard.launch.supervisor.find_cause import Slowness
from trainyard.launch.supervisor.messages import RankReport

COMMUNICATION_MS = 2.0


class Device:
    """The timeline of a device: its work in order, in ms. The host runs ahead of it by up to a step."""

    def __init__(self) -> None:
        self.queued_ms = 0.0
        """End of the work that was queued so far."""
        self.reached_ms = 0.0
        """Time up to which the device has worked."""

    def event(self) -> Event:
        return Event(self)


class Event:
    """A timing event with the methods of `torch.cuda.Event`."""

    def __init__(self, device: Device) -> None:
        self.device, self.at_ms = device, -1.0

    def record(self) -> None:
        self.at_ms = self.device.queued_ms

    def query(self) -> bool:
        return self.at_ms <= self.device.reached_ms

    def elapsed_time(self, end_event: Event) -> float:
        assert self.query()
        assert end_event.query()
        return end_event.at_ms - self.at_ms


def train(compute_ms: list[float], steps: int = 64, device_clock: bool = True) -> list[tuple[int, float]]:
    """Train with one rank for each value, computing that long before a collective in each step; return what is slow.

    Every host spins until its device has finished, so that the CPU time of all ranks is the same.
    """
    devices, timers = [Device() for _ in compute_ms], [CollectiveTimer() for _ in compute_ms]
    board = HeartbeatBoard(len(compute_ms))
    hearts, spun_ns = [board.heartbeat(rank) for rank in range(len(compute_ms))], [0]
    for rank, heart in enumerate(hearts):
        if device_clock:
            timer = timers[rank]
            heart.clock = DeviceClock(devices[rank].event, lambda timer=timer: timer.total_ns)
        else:
            heart.clock = CpuClock(lambda: spun_ns[0])
    slowness, slow = Slowness(), []
    for step in range(steps):
        for heart in hearts:
            heart.begin(step, fresh=True)
        arrivals_ms = [device.queued_ms + own_ms for device, own_ms in zip(devices, compute_ms, strict=True)]
        end_ms = max(arrivals_ms) + COMMUNICATION_MS
        for device, timer, arrival_ms in zip(devices, timers, arrivals_ms, strict=True):
            device.queued_ms = end_ms
            timer._add(SimpleNamespace(active_duration=timedelta(milliseconds=end_ms - arrival_ms)))
        spun_ns[0] = round(end_ms * 1e6)
        for device, heart in zip(devices, hearts, strict=True):
            if step % 3 == 2:  # the device lags behind the host
                device.reached_ms = device.queued_ms
            heart.end()
        reports = [
            RankReport(rank=rank, pid=1, done=reading.done, own_ns=reading.own_ns, at=round(end_ms * 1e6))
            for rank in range(len(compute_ms))
            if (reading := board.read(rank))
        ]
        slow += slowness.update(reports)
    return slow


@pytest.mark.parametrize("slow_rank", [0, 1, 3])
def test_device_events_find_the_slow_rank(slow_rank: int) -> None:
    compute_ms = [10.0] * 4
    compute_ms[slow_rank] = 20.0
    assert [rank for rank, _ in train(compute_ms)] == [slow_rank]
    assert train(compute_ms, device_clock=False) == []


def test_equal_devices_are_not_slow() -> None:
    assert train([10.0, 10.5, 9.8]) == []


def test_own_time_excludes_the_wait_in_collectives() -> None:
    device, timer = Device(), CollectiveTimer()
    clock = DeviceClock(device.event, lambda: timer.total_ns)
    clock.begin()
    device.queued_ms = 30.0
    timer._add(SimpleNamespace(active_duration=timedelta(milliseconds=18)))
    assert clock.end() == 0  # the device has not finished
    device.reached_ms = 30.0
    clock.begin()
    assert clock.end() == 12_000_000
    clock.begin()
    assert clock.end() == 0


def test_group_without_timing_is_not_watched() -> None:
    class Untimed:
        def _register_on_completion_hook(self, hook: object) -> None:
            raise RuntimeError("requires TORCH_NCCL_ENABLE_TIMING")

    timer = CollectiveTimer()
    assert not timer.watch(Untimed())
    assert not timer.watch(object())
    timer._add(SimpleNamespace(active_duration=None))
    assert timer.total_ns == 0
