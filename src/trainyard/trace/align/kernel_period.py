"""Steps from a periodic sequence of kernels, for files that show nothing else: serving, or no host spans.

A kernel that is launched once per step divides the sequence into intervals of the same kernels. A model of equal layers
has such a kernel in each layer too, but there the intervals with the first or last layer differ from the others, again
and again. Of the divisions into equal intervals, the finest is the step, if its intervals have a property of steps:
a copy to the host, a parameter update, the launch of a graph, many repetitions inside, or idle time before them that is
much longer than any within. The window may lie inside a single step, in which only layers repeat.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from trainyard.events import COPY, I64, KERNEL, Events
from trainyard.trace.align.step_candidates import Candidate
from trainyard.trace.classify.kernels import GRAPH_LAUNCH, account_by_kernel_name
from trainyard.vendors.kernel_names import copy_of

_MIN_STEPS = 4
_MIN_KERNELS, _MIN_NAMES = 5, 3
"""Kernels and distinct names per step: fewer are a loop over single operations."""
_MAX_DIVISIONS, _MAX_FIRST_NAMES = 24, 32
_SIMILAR, _MIN_SIMILAR = 0.9, 0.8
"""Similarity to the median interval from which an interval is like it, and the fraction of intervals that must be."""
_SIMILAR_LENGTH = 2
"""Factor by which most intervals may differ from the median length."""
_MIN_REPETITIONS = 8
"""Kernels of a step per distinct name: a step repeats its layers, a layer little."""
_MIN_IDLE_RATIO = 3
"""Idle time before a step over that before 95 % of its kernels."""
_MAX_CELLS = 4_000_000


def periodic_kernels(events: Events) -> Candidate | None:
    """Finds steps, each of which begins with a kernel that runs once per step on the stream with the most kernels; None
    if its kernels have no clear period. The times are those of launches, if all of these kernels' launches are in the
    file, else of the kernels."""
    work = events.work
    kernels = np.flatnonzero(work.what == KERNEL)
    if len(kernels) < _MIN_KERNELS * _MIN_STEPS:
        return None
    # Below, `kernels` are rows of `events.work`; `first` are positions in `kernels`.
    kernels = kernels[work.stream[kernels] == np.bincount(work.stream[kernels]).argmax()]
    distinct, name = np.unique(work.name[kernels], return_inverse=True)
    name = name.reshape(-1)  # names numbered from 0
    counts = np.bincount(name)
    idle_ns = _idle_before(events, kernels)
    # Many names share the count of the steps: those counts are examined first.
    by_support = Counter(counts[counts >= _MIN_STEPS].tolist()).most_common(_MAX_DIVISIONS)
    doubtful: Candidate | None = None
    for count in sorted((count for count, _ in by_support), reverse=True):
        if len(kernels) < _MIN_KERNELS * count or count * len(distinct) > _MAX_CELLS:
            continue
        first = _first_of_step(name, np.flatnonzero(counts == count), idle_ns)
        if not _is_periodic(name, first, len(distinct)) or not _is_regular(work.start[kernels[first]]):
            continue
        sign = _evidence_of_steps(events, kernels, first, idle_ns)
        candidate = _candidate(events, kernels, first, sign)
        if sign:
            return candidate
        doubtful = doubtful or candidate
    return doubtful


def _candidate(events: Events, kernels: I64, first: I64, sign: str) -> Candidate:
    """The candidate whose steps begin with `kernels[first]` (rows of `events.work`); doubtful if `sign`, a phrase for
    the property that distinguishes steps from layers, is empty."""
    rows = kernels[first]
    launched = events.work.call[rows]
    on_device = bool((launched < 0).any())
    starts = events.work.start[rows] if on_device else np.sort(events.host.start[launched])
    text = f"{len(first):,} repetitions of a sequence of about {(first[-1] - first[0]) // (len(first) - 1):,} kernels"
    text += f", each with {sign}" if sign else ", which may be layers of one step"
    return Candidate("kernels", starts, text, on_device=on_device, is_doubtful=not sign)


def _idle_before(events: Events, kernels: I64) -> I64:
    """ns that the stream is idle before each of its `kernels`."""
    start, stop = events.work.start[kernels], events.work.stop[kernels]
    return np.maximum(start - np.append(start[0], np.maximum.accumulate(stop)[:-1]), 0)


def _first_of_step(name: I64, once_per_step: I64, idle_ns: I64) -> I64:
    """Positions of the kernels that begin the steps: those of one name, of the names `once_per_step`, before whose
    kernels the stream idles longest. `name`, `idle_ns`: number of the name of each kernel, and idle time before it."""
    longest = np.argsort(-np.bincount(name, weights=idle_ns)[once_per_step], kind="stable")
    once_per_step = once_per_step[longest[:_MAX_FIRST_NAMES]]
    order = np.argsort(name, kind="stable")
    bounds = np.searchsorted(name[order], np.stack([once_per_step, once_per_step + 1], axis=1)).tolist()
    return max((order[begin:end] for begin, end in bounds), key=lambda rows: float(np.median(idle_ns[rows])))


def _is_regular(start: I64) -> bool:
    """Whether most intervals between the times are about as long as the median one."""
    length = np.diff(start)
    middle = float(np.median(length))
    is_similar = (length <= _SIMILAR_LENGTH * middle) & (_SIMILAR_LENGTH * length >= middle)
    return float(is_similar.mean()) >= _MIN_SIMILAR


def _evidence_of_steps(events: Events, kernels: I64, first: I64, idle_ns: I64) -> str:
    """Why the intervals are steps and not layers, as a phrase for the user; empty if nothing shows it. `kernels`: rows
    of `events.work` in order of start; `first`: positions in `kernels` at which an interval begins; `idle_ns`: idle
    time before each of `kernels`."""
    work, names = events.work, events.names
    interval_start_ns = work.start[kernels[first]]

    def in_most(start: I64) -> bool:
        """Whether most intervals contain one of the start times, ns."""
        counts = np.diff(np.searchsorted(np.sort(start), interval_start_ns))
        return float((counts > 0).mean()) >= _MIN_SIMILAR

    copies = np.flatnonzero(work.what == COPY)
    to_host = [number for number in np.unique(work.name[copies]).tolist() if copy_of(names[number]) == "d2h"]
    if in_most(work.start[copies[np.isin(work.name[copies], to_host)]]):
        return "a copy to the host"
    inside = np.unique(work.name[kernels])
    updates = [number for number in inside.tolist() if _is_update(names[number])]
    if in_most(work.start[kernels[np.isin(work.name[kernels], updates)]]):
        return "a parameter update"
    launches = np.array([GRAPH_LAUNCH.match(name) is not None for name in names], bool)
    call = work.call[kernels]
    if in_most(
        work.start[kernels[(call >= 0) & launches[events.host.name[call]]]]
        if len(events.host)
        else interval_start_ns[:0]
    ):
        return "the launch of a graph"
    # The mean number of kernels of an interval is at least this multiple of the distinct kernels.
    if first[-1] - first[0] >= _MIN_REPETITIONS * (len(first) - 1) * len(inside):
        return "many repetitions inside it"
    is_first = np.zeros(len(kernels), bool)
    is_first[first] = True
    long_idle_ns = float(np.quantile(idle_ns[~is_first], 0.95))
    if float(np.quantile(idle_ns[first[1:]], 0.1)) > _MIN_IDLE_RATIO * long_idle_ns:
        return "idle time before it"
    return ""


def _is_update(name: str) -> bool:
    """Whether the kernel of that name updates parameters."""
    account = account_by_kernel_name(name)
    return account is not None and account.what == "optimizer"


def _is_periodic(name: I64, first: I64, distinct: int) -> bool:
    """Whether the intervals that begin at the positions `first` contain about the same kernels. `name`: number of the
    name of each kernel, from 0 to `distinct` - 1."""
    interval = np.searchsorted(first, np.arange(first[0], first[-1]), "right") - 1
    # [interval, name]: number of kernels.
    table = np.bincount(interval * distinct + name[first[0] : first[-1]], minlength=(len(first) - 1) * distinct)
    table = table.reshape(len(first) - 1, distinct)
    typical = np.median(table, axis=0)
    if typical.sum() < _MIN_KERNELS or (typical > 0).sum() < _MIN_NAMES:
        return False
    similarity = 1 - np.abs(table - typical).sum(axis=1) / np.maximum(table.sum(axis=1) + typical.sum(), 1)
    unlike = np.flatnonzero(similarity < _SIMILAR)
    if len(unlike) > (1 - _MIN_SIMILAR) * len(table):
        return False
    # Unlike intervals that recur are the first or last layers of a step; in one place they are an evaluation.
    recurs = len(unlike) >= 2 and unlike[-1] - unlike[0] > len(table) // 2
    return not recurs
