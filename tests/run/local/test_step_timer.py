"""Steps are timed on the device, without waiting for it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.simulated_device import SimulatedDevice
from trainyard.run.local.step_timer import Mark, PendingSteps, StepTime, StepTimer

MS = 1_000_000
WORK = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=20)
"""(host ms to launch, device ms to execute) of each step."""


def timed(device: SimulatedDevice, steps: list[tuple[int, int]]) -> tuple[list[int], int]:
    """The times of the steps in ms, and how many were known before the end."""
    walls: list[int] = []
    timer = StepTimer(lambda: device, device.read_ns)
    pending = PendingSteps[int](lambda _, time: walls.append(time.wall_ns) if time.clock == "events" else None)
    begin = timer.mark()
    for number, (host, work) in enumerate(steps):
        device.launch(host * MS, work * MS)
        end = timer.mark()
        pending.add(begin, end, number)
        pending.drain()
        begin = end
    early, waits = len(walls), device.waits
    device.synchronize()
    assert pending.finish(0.0) == 0
    assert waits == 0
    return [round(ns / MS) for ns in walls], early


@given(WORK)
def test_step_times_sum_to_the_time_on_the_device(steps: list[tuple[int, int]]) -> None:
    device = SimulatedDevice()
    walls, _ = timed(device, steps)
    assert len(walls) == len(steps)
    assert sum(walls) == round(device.free_ns / MS)
    for (host, work), wall in zip(steps, walls):
        assert work <= wall <= host + work


def test_device_bound_steps_take_the_time_of_the_device() -> None:
    walls, early = timed(SimulatedDevice(), [(1, 10)] * 8)
    assert walls == [11, *[10] * 7]
    assert early == 0  # the host has launched all of them before the first has ended


def test_host_bound_steps_take_the_time_of_the_host() -> None:
    walls, early = timed(SimulatedDevice(), [(10, 1)] * 8)
    assert walls == [11, *[10] * 7]
    assert early == 7


def test_without_device_the_clock_of_the_host_is_read() -> None:
    device, resolved = SimulatedDevice(), []
    timer = StepTimer(lambda: None, device.read_ns)
    pending = PendingSteps[str](lambda *known: resolved.append(known))
    begin = timer.mark()
    device.launch(3, 100)
    end = timer.mark()
    pending.add(begin, end, "a")
    pending.drain()
    assert resolved == [("a", StepTime(3, "host", end))]


def test_steps_that_the_device_never_ends_are_counted() -> None:
    device, resolved = SimulatedDevice(), []
    timer = StepTimer(lambda: device, device.read_ns)
    pending = PendingSteps[str](lambda *known: resolved.append(known))
    begin = timer.mark()
    device.launch(1, 10**12)
    pending.add(begin, timer.mark(), "a")
    pending.add(Mark(0), timer.mark(), "b")
    assert (pending.finish(0.01), resolved, len(pending)) == (2, [], 0)
