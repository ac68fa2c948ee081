"""The end of a step by the host's clock, from the events of a device whose clock drifts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.simulated_device import Event, SimulatedDevice
from trainyard.run.local.end_times import EndTimes
from trainyard.run.local.step_timer import Mark, StepTimer, wait_for

MS = 1_000_000


class DriftingEvent(Event):
    """An event of a device whose clock is 2 % slow."""

    def elapsed_time(self, end: Event) -> float:
        return 0.98 * super().elapsed_time(end)


class DriftingDevice(SimulatedDevice):
    def Event(self, enable_timing: bool = False) -> Event:
        assert enable_timing
        return DriftingEvent(self)


def largest_error_ns(device: SimulatedDevice, launches: list[tuple[int, int]]) -> int:
    """The largest error of a step's end. `launches`: the times of the host and the device for each step, in ms. The
    host reads a step after it has launched the next."""
    timer = StepTimer(lambda: device, device.read_ns)
    ends, errors = EndTimes(timer.mark(), timer.read_ns), []
    marks: list[Mark] = []
    for host, work in launches:
        device.launch(host * MS, work * MS)
        marks.append(timer.mark())
        if len(marks) > 1:
            has_waited = wait_for(marks[-2])
            errors.append(device.host_ns - ends.age_ns(marks[-2], has_waited) - marks[-2].event.passed_ns)
    return max(map(abs, errors))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=20))
def test_end_times_are_exact_with_equal_clocks(launches: list[tuple[int, int]]) -> None:
    assert largest_error_ns(SimulatedDevice(), launches) == 0


def test_drift_of_the_device_s_clock_does_not_accumulate() -> None:
    assert largest_error_ns(DriftingDevice(), [(1, 10)] * 1000) < MS
    assert largest_error_ns(DriftingDevice(), [(10, 1)] * 1000) <= MS  # the device's time of a step


def test_without_a_device_the_marks_have_the_time() -> None:
    now = [5]
    timer = StepTimer(lambda: None, lambda: now[0])
    ends = EndTimes(timer.mark(), timer.read_ns)
    now[0] = 9
    end = timer.mark()
    now[0] = 30
    assert ends.age_ns(end) == 21
