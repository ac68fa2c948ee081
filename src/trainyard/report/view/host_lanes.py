"""Lanes of the host: the spans of each thread by depth of nesting."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.events import CALL, I32, I64, NOTE, OP, PYTHON, Events, HostSpans
from trainyard.report.view.view import Legend

MOST_DEPTHS = 24
"""Levels of nesting that are drawn of each thread; deeper spans are left out."""
HOST_LOOKS = {
    OP: Legend(label="Framework operation", colour="#7fa38f"),
    CALL: Legend(label="Driver call", colour="#b07d3c"),
    NOTE: Legend(label="Annotation", colour="#a493b8"),
    PYTHON: Legend(label="Python", colour="#b3ab97"),
}
"""Kind of a host span -> its legend."""


class HostLane(NamedTuple):
    """Spans of one thread at one depth, 0 for the outermost lane. `rows`: host rows, sorted by start."""

    label: str
    thread: int
    depth: int
    rows: I64


def depths(parent: I32) -> I64:
    """The number of spans around each span. `parent`: row of the enclosing span, -1 for none."""
    depth = np.zeros(len(parent), np.int64)
    above = parent.astype(np.int64)
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return depth


def host_lanes(events: Events, depth: I64, window: tuple[int, int]) -> list[HostLane]:
    """The lanes of all threads that have spans inside the `window` (ns), the training thread first, each from the
    outermost spans inwards. `depth`: number of spans around each host row."""
    host = events.host
    inside = (host.stop > window[0]) & (host.start < window[1]) & (host.stop > host.start)
    present = np.flatnonzero(np.bincount(host.thread[inside])).tolist() if inside.any() else []
    threads = sorted(present, key=lambda thread: (thread != events.main, thread))
    lanes: list[HostLane] = []
    for number, thread in enumerate(threads):
        label = "training thread" if thread == events.main else f"thread {number}"
        own = np.flatnonzero(inside & (host.thread == thread))
        levels = [own[depth[own] == level] for level in np.flatnonzero(np.bincount(depth[own])).tolist()]
        first = _first_level(levels, host, window)
        lanes.extend(
            HostLane(label, thread, level, rows) for level, rows in enumerate(levels[first : first + MOST_DEPTHS])
        )
    return lanes


def _first_level(levels: list[I64], host: HostSpans, window: tuple[int, int]) -> int:
    """The number of outermost levels to leave out: those with a single span that lasts for the whole window, such as
    the frames of the launcher of a script, except the last of them."""
    spanning = 0
    for rows in levels:
        if len(rows) > 1 or host.start[rows[0]] > window[0] or host.stop[rows[0]] < window[1]:
            break
        spanning += 1
    return max(0, spanning - 1)
