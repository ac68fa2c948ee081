"""Evidence of steps in a file without marks: optimizer steps, batches, repeated annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainyard.events import I64, NOTE, Events
from trainyard.recorded_stacks import CLOCK_MARK
from trainyard.trace.align.host_timeline import HostTimeline, work_items
from trainyard.trace.classify.context import Context
from trainyard.trace.readers.gather import OWN_RANGES
from trainyard.trace.readers.nesting import outermost_rows

_LOADER = "enumerate(DataLoader)"
_FRAMEWORK = (
    "Optimizer.", _LOADER, "nccl:", "gloo:", "MPI_", "record_param_comms", "nn.Module: ", "Python GC", "FSDP",
    "DistributedDataParallel", "FullyShardedDataParallel", "Torch-Compiled Region", "TorchDynamo", "Pregraph bytecode",
    "PythonSubclass", CLOCK_MARK, *OWN_RANGES,
)  # fmt: skip
"""Beginnings of the names of annotations that frameworks and readers write, which may occur several times per step."""
_NUMBER = re.compile(r"\d+")
_STEP_NAME = re.compile(r"step|iter|batch", re.I)
_MAX_OPTIMIZERS = 4
_SAME_WORK = 0.1
"""Relative difference in the number of backward nodes up to which two optimizer steps follow the same work."""
_MIN_AGREEMENT = 0.9
_MIN_REPEATS = 3
_MAX_ANNOTATIONS = 6


class Candidate(NamedTuple):
    """Times at which steps may begin, ascending, in ns. `source`: a key of words.STEP_SOURCES; `text`: a description
    for the user; `ends_step`: the times are ends of steps, so that a step may precede the first time, not follow the
    last; `on_device`: times of device work, not of the host; `is_doubtful`: something else than steps may repeat."""

    source: str
    cuts: I64
    text: str
    ends_step: bool = False
    on_device: bool = False
    is_doubtful: bool = False


def host_candidates(events: Events, context: Context, timeline: HostTimeline) -> Iterator[Candidate]:
    """Candidates from the host's spans, the most reliable first."""
    around_steps, others = _repeated_annotations(events, timeline)
    yield from around_steps
    yield from _optimizer_steps(events, context, timeline)
    yield from _fetched_batches(events, timeline)
    yield from others


def _optimizer_steps(events: Events, context: Context, timeline: HostTimeline) -> Iterator[Candidate]:
    """Steps that end with an optimizer's. Optimizers without a backward pass in between belong to one step, as those of
    parameter groups do; of optimizers that take turns, as those of a generator and a discriminator, the last ends it.
    """
    host, names = events.host, events.names
    rows = context.passes.optimizer
    rows = rows[host.thread[rows] == timeline.thread]
    if len(rows) < 2:
        return
    start, stop = host.start[rows], host.stop[rows]
    has_backward = len(timeline.backward.start) > 0
    between = timeline.backward if has_backward else work_items(events, timeline.thread).spans
    previous_stop = np.append(events.span[0], stop[:-1])
    nodes = between.starting_in(previous_stop, stop if has_backward else start)
    first = np.flatnonzero(np.append(True, nodes[1:] > 0))
    nodes_per_group = np.add.reduceat(nodes, first)
    names_per_group = [
        tuple(names[host.name[row]] for row in rows[begin:end].tolist())
        for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(rows)])
    ]
    last_stop = stop[np.append(first[1:], len(rows)) - 1]
    period = _period(names_per_group, nodes_per_group)
    offset = _closing_group(events, timeline, last_stop, period)
    cuts = last_stop[offset::period]
    text = " and ".join(sorted({name for group in names_per_group for name in group})[:3])
    times = f"{len(rows) / max(1, len(cuts)):.3g} per step" if len(rows) != len(cuts) else "one per step"
    yield Candidate("optimizer", cuts, f"{len(rows):,} spans of {text}, {times}", ends_step=True)


def _period(names: list[tuple[str, ...]], nodes: I64) -> int:
    """The number of optimizer steps after which names and numbers of backward nodes repeat; 1 if they do not."""
    for period in range(1, _MAX_OPTIMIZERS + 1):
        if len(names) < 2 * period + 1:
            break
        earlier, later = nodes[:-period], nodes[period:]
        is_same = np.abs(earlier - later) <= _SAME_WORK * np.maximum(earlier, later)
        is_same &= np.array([a == b for a, b in zip(names, names[period:])])
        if is_same.mean() >= _MIN_AGREEMENT:
            return period
    return 1


def _closing_group(events: Events, timeline: HostTimeline, stop: I64, period: int) -> int:
    """Index of the optimizer step, among the first `period`, that ends a step: the one before a batch is fetched, else
    the last."""
    if period == 1:
        return 0
    fetches = events.host.start[_loader_rows(events, timeline)]
    following = np.searchsorted(fetches, np.append(stop[1:], events.span[1])) - np.searchsorted(fetches, stop)
    counts = [int(following[offset::period].sum()) for offset in range(period)]
    return int(np.argmax(counts)) if any(counts) else period - 1


def _loader_rows(events: Events, timeline: HostTimeline) -> I64:
    """Host rows of the fetches of batches on the training thread, by the loader that fetches the most."""
    host = events.host
    is_loader = np.array([name.startswith(_LOADER) for name in events.names], bool)
    rows = np.flatnonzero(is_loader[host.name] & (host.what == NOTE) & (host.thread == timeline.thread))
    return rows[host.name[rows] == np.bincount(host.name[rows]).argmax()] if len(rows) else rows


def _fetched_batches(events: Events, timeline: HostTimeline) -> Iterator[Candidate]:
    """Steps that begin with the fetch of a batch."""
    rows = _loader_rows(events, timeline)
    if len(rows) >= _MIN_REPEATS:
        yield Candidate("loader", events.host.start[rows], f"{len(rows):,} fetches by {_LOADER}")


def _repeated_annotations(events: Events, timeline: HostTimeline) -> tuple[list[Candidate], list[Candidate]]:
    """Steps that begin with an annotation of the user: annotations around steps, by their names and the time that they
    cover, and others; each in descending order of that time. Numbers in names do not count; only the outermost
    annotations of a name do."""
    host, names = events.host, events.names
    is_named = np.array([not name.startswith(_FRAMEWORK) for name in names], bool)
    rows = np.flatnonzero((host.what == NOTE) & (host.thread == timeline.thread) & is_named[host.name])
    if not len(rows):
        return [], []
    texts: dict[str, int] = {}
    group_of_name = np.zeros(len(names), np.int64)
    for name in np.unique(host.name[rows]).tolist():
        group_of_name[name] = texts.setdefault(_NUMBER.sub("N", names[name]), len(texts))
    group, length = group_of_name[host.name[rows]], host.stop[rows] - host.start[rows]
    total_ns = np.bincount(group, weights=length) * (np.bincount(group) >= _MIN_REPEATS)
    around_steps: list[Candidate] = []
    others: list[Candidate] = []
    for number in np.argsort(-total_ns, kind="stable")[:_MAX_ANNOTATIONS].tolist():
        outer = _outermost(events, rows[group == number])
        if total_ns[number] and len(outer) >= _MIN_REPEATS:
            text = list(texts)[number]
            covered_ns = int((host.stop[outer] - host.start[outer]).sum())
            is_around = _STEP_NAME.search(text) and 2 * covered_ns >= host.stop[outer[-1]] - host.start[outer[0]]
            candidate = Candidate("annotation", host.start[outer], f"{len(outer):,} annotations {text[:60]!r}")
            (around_steps if is_around else others).append(candidate)
    return around_steps, others


def _outermost(events: Events, same: I64) -> I64:
    """The host rows of `same` that are not inside another one."""
    is_same = np.zeros(len(events.host), bool)
    is_same[same] = True
    return outermost_rows(is_same, events.host.parent)
