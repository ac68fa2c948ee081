"""Host threads of an xplane.pb file: calls of the driver are joined with the thread that made them.

A profiler of the device may record the calls of a thread on a line of its own, under another id than the thread's
annotations (TraceMe). The line of calls belongs to the thread whose annotations contain all of its calls and cross none
of them; of several such threads, to the one whose annotations around the calls are shortest, since a thread that waits
for another contains its calls, too. A call and the device work that it launched have the same stat `correlation_id`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from trainyard.trace.readers.xplane_messages import Event, Plane, decode_events, line_id

HOST_PLANES = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")


_MAX_PAIRS = 1_000_000
"""Lines of calls times other lines, at most, that are compared."""


class HostThread(NamedTuple):
    """The events of a host thread, in order of start, the longest first. `python_ns`: time in Python; `calls`:
    the correlation ids of its calls; `has_steps`: whether it has annotations of steps."""

    ident: int
    events: list[Event]
    python_ns: int
    calls: frozenset[int]
    has_steps: bool


def host_threads(planes: Sequence[Plane], damaged: list[str]) -> list[HostThread]:
    """The threads of the host's planes; lines with one id are one thread, and a line of calls is joined with the thread
    that made them. Appends the damage of unreadable events to `damaged`."""
    lines: dict[int, list[Event]] = {}  # id of the line -> its events
    for plane in planes:
        for line in plane.lines if plane.name in HOST_PLANES else ():
            lines.setdefault(line_id(line), []).extend(decode_events(plane, line, damaged))
    for events in lines.values():
        events.sort(key=lambda event: (event.start, -event.stop))
    lines_of_calls = {ident for ident, events in lines.items() if events and all(map(is_call, events))}
    nestings = {ident: _Nesting(events) for ident, events in lines.items() if ident not in lines_of_calls}
    if len(lines_of_calls) * len(nestings) > _MAX_PAIRS:  # no program has so many threads
        lines_of_calls.clear()
    for ident in lines_of_calls:
        # (ns of the annotations around the calls, id of the thread) of each thread that may have made them.
        candidates = [
            (around_ns, thread)
            for thread, nesting in nestings.items()
            if (around_ns := nesting.measure_around(lines[ident])) is not None
        ]
        if candidates:
            _, owner = min(candidates)
            lines[owner] = sorted([*lines[owner], *lines.pop(ident)], key=lambda event: (event.start, -event.stop))
    return [_host_thread(ident, events) for ident, events in lines.items()]


def names_of_calls(threads: Sequence[HostThread]) -> dict[int, str]:
    """Correlation id -> name of the call."""
    calls = (event for thread in threads for event in thread.events if is_call(event))
    return {int(event.stats["correlation_id"]): event.name for event in calls}


def _host_thread(ident: int, events: list[Event]) -> HostThread:
    calls = frozenset(int(event.stats["correlation_id"]) for event in events if is_call(event))
    has_steps = any(isinstance(event.stats.get("step_num"), int) for event in events)
    return HostThread(ident, events, _python_ns(events), calls, has_steps)


def is_call(event: Event) -> bool:
    """Whether the event is a call of the driver: only those have a correlation id."""
    return isinstance(event.stats.get("correlation_id"), int)


class _Nesting:
    """The annotations of a thread, for queries of those around a call. `edges`: ascending times (ns) at which an
    annotation begins or ends; `innermost[i]`: (start, stop) of the innermost annotation that is open from edge i to the
    next one, None if none is."""

    def __init__(self, events: Sequence[Event]) -> None:
        """`events`: sorted by start, the longest first."""
        spans = [(event.start, event.stop) for event in events if event.stop > event.start]
        self.edges: list[int] = []
        self.innermost: list[tuple[int, int] | None] = []
        stack: list[tuple[int, int]] = []
        for span in spans:
            while stack and stack[-1][1] <= span[0]:
                self._close(stack)
            self.edges.append(span[0])
            self.innermost.append(span)
            stack.append(span)
        while stack:
            self._close(stack)

    def _close(self, stack: list[tuple[int, int]]) -> None:
        """Pops the innermost of the open annotations `stack`, and adds the edge at its end."""
        closed = stack.pop()
        self.edges.append(max(closed[1], self.edges[-1]))
        self.innermost.append(stack[-1] if stack else None)

    def measure_around(self, calls: Sequence[Event]) -> int | None:
        """Total ns of the innermost annotations around the calls; None if a call is outside all, or crosses an edge."""
        total = 0
        for call in calls:
            index = bisect_right(self.edges, call.start) - 1
            around = self.innermost[index] if index >= 0 else None
            if around is None or not around[0] <= call.start <= call.stop <= around[1]:
                return None
            if index + 1 < len(self.edges) and self.edges[index + 1] < call.stop:
                return None
            total += around[1] - around[0]
        return total


def _python_ns(events: Sequence[Event]) -> int:
    """Total time (ns) under Python frames, which the tracer names `$file.py:line function`, and under JAX's calls of
    compiled functions, for files without a trace of Python. `events`: in order of start; nested ones count once."""
    total, covered_until = 0, -(2**63)
    for event in events:
        if event.name.startswith(("$", "PjitFunction(")) and event.stop > covered_until:
            total += event.stop - max(event.start, covered_until)
            covered_until = event.stop
    return total
