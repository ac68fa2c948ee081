"""Initialisation at first use: calls and ops that take very long once, at their first occurrence in the file.

A library, a device context, a communicator or a data loader is set up when it is first used: `cudaFree` creates the
context, the first launch of a kernel loads its module, the first collective of a group connects its ranks, the first
batch starts the loader's workers. Names do not distinguish these from ordinary calls, but lengths do: the first
occurrence takes many times as long as the others. A launch is the first of its kernel; any other span the first of its
name.

A driver call that the file has only once has nothing to be compared with. It counts as initialisation if it is very
long and lies in the first step, or, without marks, in the first quarter of the recording.

A host row is an index into the columns of `HostSpans`, a name number one into `Events.names`. `host.what` is the kind
of a span: OP, CALL (to the driver), NOTE (an annotation) or PYTHON (a frame); `work.call` is the host row of the call
that launched each row of device work, -1 if not recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import CALL, I8, I64, NOTE, OP, Events
from trainyard.trace.readers.nesting import nearest_ancestor

INIT = "launch_gap/init"
_MIN_NS = 1_000_000
"""Least length of a driver call: shorter first uses cost less than the noise of a step."""
_MIN_LONE_NS = 10_000_000
"""Least length of an op, and of a call with few others to compare with: allocations take up to some ms, and an op may
be preempted for as long."""
_MIN_RATIO = 20
"""Length of a first use over the length that (almost) no other occurrence exceeds: lengths of one call vary by ten."""
_MAX_LONG_FRACTION = 0.02
"""Fraction of the other occurrences that may exceed it: threads are preempted at times."""
_MIN_OTHERS = 3
"""Occurrences without which a span counts as lone."""
_EARLY_FRACTION = 0.25
_REPLACED = ("launch_gap/alloc", "launch_gap/compile", "data_wait")
"""Causes by name that initialisation replaces; a sync or the garbage collector in it keeps its own."""


class _Spans(NamedTuple):
    """m host rows: `length` in ns; `foreign`: ns of it in inner spans with another cause, such as a sync."""

    length: I64
    foreign: I64


def mark_first_use(events: Events, cause: I8, causes: tuple[str, ...]) -> tuple[I8, tuple[str, ...]]:
    """Changes the cause of first uses, and of the spans inside them, to `launch_gap/init`. A cause that
    is not in `_REPLACED` stays.

    `cause`: an index into `causes` for each host row, -1 for none. Returns the changed column (a copy) and the list of
    causes with `launch_gap/init` added; both as they are if there is no first use.
    """
    host = events.host
    length = host.stop - host.start
    if not (length >= _MIN_NS).any():
        return cause, causes
    replaced = np.array([*(text in _REPLACED for text in causes), True], bool)[cause]
    # A module that a driver call loads is part of a first use. Compilation by torch.compile is a cause of its own, also
    # in the first call of a compiled region: it can happen again in any step.
    is_compilation = np.array([*(text == "launch_gap/compile" for text in causes), False], bool)[cause]
    replaced &= ~(is_compilation & (host.what == OP))
    is_wait = np.array([*(text == "data_wait" for text in causes), False], bool)[cause]
    kernel = _kernel_of_call(events)
    is_root = np.zeros(len(host), bool)  # first uses found so far
    # Driver calls first: an op that contains a first use of a call is judged without the time of that call.
    for is_kind in (host.what == CALL, ((host.what == OP) | (host.what == NOTE) & is_wait) & (kernel < 0)):
        spans = _Spans(length, _foreign_ns(events, length, ~replaced | is_root))
        is_root[_first_uses(events, spans, kernel, is_kind & replaced)] = True
    if not is_root.any():
        return cause, causes
    inside = is_root | (nearest_ancestor(is_root, host.parent) >= 0)
    return np.where(inside & replaced, len(causes), cause).astype(np.int8), (*causes, INIT)


def _kernel_of_call(events: Events) -> I64:
    """The name number of the device work that each host row launched first, -1 for none."""
    work = events.work
    kernel = np.full(len(events.host), -1, np.int64)
    # In reverse order, so that the first work of a call is written last.
    launched = np.flatnonzero(work.call >= 0)[::-1]
    kernel[work.call[launched]] = work.name[launched]
    return kernel


def _foreign_ns(events: Events, length: I64, is_foreign: NDArray[np.bool_]) -> I64:
    """ns of each host row in spans inside it that `is_foreign` selects, without short ones. A selected span inside
    another one, at any depth, counts for the rows inside that one only. `length`: ns of each host row."""
    parent = events.host.parent
    rows = np.flatnonzero(is_foreign & (length >= _MIN_NS // _MIN_RATIO))
    foreign = np.zeros(len(length), np.int64)
    ancestor, ns = parent[rows], length[rows]
    # Adds the length of each selected span to its parent, then to the parent's parent, and so on, up to the next
    # selected span, whose own length contains it for all rows above.
    while len(ancestor := ancestor[(is_inside := ancestor >= 0)]):
        ns = ns[is_inside]
        np.add.at(foreign, ancestor, ns)
        ancestor = np.where(is_foreign[ancestor], -1, parent[ancestor])
    return foreign


def _first_uses(events: Events, spans: _Spans, kernel: I64, is_kind: NDArray[np.bool_]) -> list[int]:
    """Host rows, of those that the mask `is_kind` selects, that are first uses.

    `kernel`: name number of the work that each row launched first, or -1. A row is a candidate if it is the first of
    its name, or the first launch of its kernel, and long enough; then its length without foreign spans is compared with
    those of the other rows of its name.
    """
    host = events.host
    own_ns = spans.length - spans.foreign
    rows = np.flatnonzero(is_kind)
    is_first = np.zeros(len(host), bool)
    is_first[rows[np.unique(host.name[rows], return_index=True)[1]]] = True
    launches = rows[kernel[rows] >= 0]
    pair = host.name[launches].astype(np.int64) * len(events.names) + kernel[launches]  # call and kernel as one number
    is_first[launches[np.unique(pair, return_index=True)[1]]] = True
    candidates = np.flatnonzero(is_first & (own_ns >= np.where(host.what == CALL, _MIN_NS, _MIN_LONE_NS)))
    if not len(candidates):
        return []
    others = rows[~is_first[rows]]
    count_by_name = np.bincount(host.name[others], minlength=len(events.names))
    # Other occurrences that may be long enough to contradict a first use, sorted by name, then by length.
    others = others[own_ns[others] >= _MIN_NS // _MIN_RATIO]
    others = others[np.lexsort((own_ns[others], host.name[others]))]
    names, ns = host.name[others], own_ns[others]
    early_stop = _early_stop(events)
    first_uses: list[int] = []
    for row in candidates.tolist():
        others_count, row_ns = int(count_by_name[host.name[row]]), int(own_ns[row])
        low, high = np.searchsorted(names, [host.name[row], host.name[row] + 1])
        longer = int(high - low - np.searchsorted(ns[low:high], row_ns / _MIN_RATIO))
        if longer > _MAX_LONG_FRACTION * others_count:
            continue
        if others_count >= _MIN_OTHERS or (
            row_ns >= _MIN_LONE_NS and host.start[row] < early_stop and host.what[row] == CALL
        ):
            first_uses.append(row)
    return first_uses


def _early_stop(events: Events) -> int:
    """The end (ns) of the first step, or of the first quarter of the recording if no marks show steps."""
    if events.marks:
        return events.marks[0].stop
    start, stop = events.span
    return start + int(_EARLY_FRACTION * (stop - start))
