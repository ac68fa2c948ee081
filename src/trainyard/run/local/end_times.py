"""When the device ended each step, by the host's clock, although the host reads its events later. No torch here."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.run.local.step_timer import Mark, elapsed_ns, wait_for


class EndTimes:
    """Host times at which the device passed marks, from the distance of each mark to the one before.

    The two clocks drift apart. A mark that the host has waited for thus has the time of the host's clock, which also
    bounds the others: the device passes a mark after the host has set it and before the host reads it.
    """

    def __init__(self, anchor: Mark, read_ns: Callable[[], int]) -> None:
        """Waits for the device to pass `anchor`, a mark that was just set. `read_ns`: the clock of the marks."""
        wait_for(anchor)
        self._read_ns = read_ns
        self._last, self._last_ns = anchor, read_ns()
        """The last mark whose time is known, and that time."""

    def age_ns(self, end: Mark, has_just_passed: bool = False) -> int:
        """Time since the device passed `end`, in ns. Call for each mark in order, once the device has passed it.
        `has_just_passed`: the host has waited for the mark until now."""
        now_ns = self._read_ns()
        passed_ns = now_ns if has_just_passed else self._last_ns + elapsed_ns(self._last, end)
        self._last, self._last_ns = end, min(max(passed_ns, end.host_ns), now_ns)
        return now_ns - self._last_ns
