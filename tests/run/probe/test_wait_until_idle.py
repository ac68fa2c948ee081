"""Waiting for other processes: until they are idle, no longer than allowed, and not at all if it is not needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trainyard.machine_load import MachineLoad
from trainyard.run.probe import wait_until_idle as waiting
from trainyard.run.probe.wait_until_idle import wait_until_idle


def load(other: float) -> MachineLoad:
    return MachineLoad(window_s=0.25, cores=2, run_cores=0.0, other_cores=other)


class Clock:
    """Time that passes only while something sleeps or measures the load."""

    def __init__(self, loads: list[MachineLoad | None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.messages = 100.0, list[str]()
        self._loads: Iterator[MachineLoad | None] = iter(loads)
        monkeypatch.setattr(waiting, "present_load", self.measure)
        monkeypatch.setattr(waiting.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(waiting.time, "sleep", self.sleep)

    def measure(self) -> MachineLoad | None:
        self.now_s += 0.25
        return next(self._loads)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def wait(self, wait_s: float) -> MachineLoad | None:
        return wait_until_idle(wait_s, self.messages.append)


def test_wait_ends_when_others_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock([load(1.9), load(0.9), load(0.05)], monkeypatch)
    assert clock.wait(60) == load(0.05)
    assert clock.now_s == pytest.approx(102.25)
    assert len(clock.messages) == 1
    assert "1.9 of 2" in clock.messages[0]


def test_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock([load(1.9)] * 99, monkeypatch)
    assert clock.wait(5) == load(1.9)
    assert 105 <= clock.now_s <= 105.25


@pytest.mark.parametrize(("first", "wait_s"), [(load(1.9), 0.0), (load(0.0), 60.0), (None, 60.0)])
def test_no_wait_if_forbidden_or_not_needed(
    first: MachineLoad | None, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock([first], monkeypatch)
    assert clock.wait(wait_s) == first
    assert clock.now_s == pytest.approx(100.25)
    assert clock.messages == []
