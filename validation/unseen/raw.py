"""Events of a Kineto trace, read with json and numpy alone."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
MARK = "ProfilerStep#"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Addresses of objects in names of built-in functions, which findings leave out."""


class Trace(NamedTuple):
    """The complete events of one rank's training window, without its marks, in order of start.

    `start`, `stop`: of each event, in µs; `steps`: number of marks, or of optimizer steps in a file without marks;
    `marked`: whether it has marks; `wall`: µs from the first mark to the end of the last, or from the first event to
    the end of the last optimizer step; `own`: µs of each event outside the events that it contains; `marks`: start of
    each mark, in µs.
    """

    names: list[str]
    start: F64
    stop: F64
    steps: int
    marked: bool
    wall: float
    own: F64
    marks: F64

    def pick(self, *prefixes: str) -> NDArray[np.bool_]:
        """Mask of the events whose names begin with one of `prefixes`."""
        return np.array([name.startswith(prefixes) for name in self.names], bool)

    def union(self, mask: NDArray[np.bool_]) -> float:
        """µs that the selected events cover."""
        if not mask.any():
            return 0.0
        start, stop = self.start[mask], np.maximum.accumulate(self.stop[mask])
        before = np.concatenate([[-np.inf], stop[:-1]])
        return float(np.maximum(stop - np.maximum(start, before), 0).sum())

    def longest_in_step(self, mask: NDArray[np.bool_]) -> float:
        """µs that the selected events cover in the step in which they cover most; in a file without marks, in all."""
        step = np.searchsorted(self.marks, self.start, "right")
        return max((self.union(mask & (step == number)) for number in np.unique(step[mask])), default=0.0)

    def inside(self, outer: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Mask of the events that start inside one of the `outer` events, which do not overlap."""
        starts, stops = self.start[outer], self.stop[outer]
        index = np.searchsorted(starts, self.start, "right") - 1
        return (index >= 0) & (self.start < stops[np.maximum(index, 0)]) & ~outer if len(starts) else outer


def load(path: Path) -> Trace:
    """Reads a file, plain or gzip. Events outside the marks are left out."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document: Any = json.loads(text)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X" and event.get("cat") != "Trace"]
    events.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
    marks = [event for event in events if event["name"].startswith(MARK) and event["cat"] == "user_annotation"]
    updates = [event for event in events if event["name"].startswith("Optimizer.step#")]
    spans = marks or updates
    first = float((marks or events)[0]["ts"])
    last = max(float(event["ts"]) + float(event["dur"]) for event in spans)
    events = [event for event in events if first <= float(event["ts"]) < last and not event["name"].startswith(MARK)]
    start = np.array([float(event["ts"]) for event in events])
    stop = start + np.array([float(event["dur"]) for event in events])
    begins = np.array([float(event["ts"]) for event in marks])
    threads = [str(event["tid"]) for event in events]
    own = _own_time(start, stop, threads)
    names = [_ADDRESS.sub("", event["name"]) for event in events]
    return Trace(names, start, stop, len(spans), bool(marks), last - first, own, begins)


def _own_time(start: F64, stop: F64, threads: list[str]) -> F64:
    """The length of each event without those of the events directly inside it on its thread."""
    own = stop - start
    open_events: dict[str, list[int]] = {}
    for index, thread in enumerate(threads):
        stack = open_events.setdefault(thread, [])
        while stack and stop[stack[-1]] <= start[index]:
            stack.pop()
        if stack:
            own[stack[-1]] -= min(stop[index], stop[stack[-1]]) - start[index]
        stack.append(index)
    return own.clip(0)
