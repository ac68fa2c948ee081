"""Evidence of steps in a file without marks (step annotations): optimizer steps, batches, repeated annotations.

Each kind of evidence gives a candidate: the times at which steps may begin or end. `infer_steps` determines how regular
the candidates are and chooses among them. A host row is an index into the columns of `HostSpans`; a name number is an
index into `Events.names`. The timeline names the training thread and has its backward nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainyard.events import I64, NOTE, Events
from trainyard.recorded_stacks import CLOCK_MARK, MODULE_PREFIX
from trainyard.trace.align.host_timeline import HostTimeline, work_items
from trainyard.trace.classify.context import Context
from trainyard.trace.readers.gather import OWN_RANGES
from trainyard.trace.readers.nesting import outermost_rows

_LOADER = "enumerate(DataLoader)"
_FRAMEWORK = (
    "Optimizer.", _LOADER, "nccl:", "gloo:", "MPI_", "record_param_comms", MODULE_PREFIX, "Python GC", "FSDP",
    "DistributedDataParallel", "FullyShardedDataParallel", "Torch-Compiled Region", "TorchDynamo", "Pregraph bytecode",
    "PythonSubclass", CLOCK_MARK, *OWN_RANGES,
)  # fmt: skip
"""Beginnings of the names of annotations that frameworks and readers write, which may occur several times per step."""
_NUMBER = re.compile(r"\d+")
_STEP_NAME = re.compile(r"step|iter|batch", re.I)
_MAX_OPTIMIZERS = 4
"""Optimizers that may take turns within a step, at most."""
_SAME_WORK = 0.1
"""Relative difference in the number of backward nodes up to which two optimizer steps follow the same work."""
_MIN_AGREEMENT = 0.9
"""Fraction of the optimizer steps that must be like the one a period earlier."""
_MIN_REPEATS = 3
"""Occurrences from which annotations or fetches of batches may mark steps."""
_MAX_ANNOTATIONS = 6
"""Texts of annotations that are considered, those with the longest total time first."""


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
    """Yields the candidates that the host's spans give, the most reliable first. `context`: its `passes.optimizer` are
    the host rows of the annotations `Optimizer.step#`."""
    around_steps, others = _repeated_annotations(events, timeline)
    yield from around_steps
    yield from _optimizer_steps(events, context, timeline)
    yield from _fetched_batches(events, timeline)
    yield from others


def _optimizer_steps(events: Events, context: Context, timeline: HostTimeline) -> Iterator[Candidate]:
    """Yields at most one candidate: steps that end with an optimizer's span.

    Optimizers without a backward pass in between form a group and belong to one step, as those of parameter groups do.
    Groups may take turns, as those of a generator and a discriminator: then `period` groups form a step, and the last
    of them ends it.
    """
    host, names = events.host, events.names
    rows = context.passes.optimizer
    rows = rows[host.thread[rows] == timeline.thread]
    if len(rows) < 2:
        return
    start, stop = host.start[rows], host.stop[rows]
    has_backward = len(timeline.backward.start) > 0
    # A file that shows no backward pass: the ops of the thread, or else the launches, separate optimizer steps.
    between = timeline.backward if has_backward else work_items(events, timeline.thread).spans
    # Backward nodes or ops before each optimizer span. An optimizer with a closure runs the backward pass inside its
    # span, so nodes count up to its end.
    previous_stop = np.append(events.span[0], stop[:-1])
    nodes = between.starting_in(previous_stop, stop if has_backward else start)
    # Position in `rows` of the first and, plus one, of the last optimizer span of each group.
    first = np.flatnonzero(np.append(True, nodes[1:] > 0))
    end = np.append(first[1:], len(rows))
    nodes_per_group = np.add.reduceat(nodes, first)
    names_per_group = [
        tuple(names[host.name[row]] for row in rows[group_first:group_end].tolist())
        for group_first, group_end in zip(first.tolist(), end.tolist())
    ]
    group_stop = stop[end - 1]
    period = _groups_per_step(names_per_group, nodes_per_group)
    offset = _closing_group(events, timeline, group_stop, period)
    cuts = group_stop[offset::period]
    text = " and ".join(sorted({name for group in names_per_group for name in group})[:3])
    times = f"{len(rows) / max(1, len(cuts)):.3g} per step" if len(rows) != len(cuts) else "one per step"
    yield Candidate("optimizer", cuts, f"{len(rows):,} spans of {text}, {times}", ends_step=True)


def _groups_per_step(names_per_group: list[tuple[str, ...]], nodes_per_group: I64) -> int:
    """The smallest number of groups of optimizers after which their names and the numbers of backward nodes before them
    repeat; 1 if they do not."""
    for period in range(1, _MAX_OPTIMIZERS + 1):
        if len(names_per_group) < 2 * period + 1:
            break
        earlier, later = nodes_per_group[:-period], nodes_per_group[period:]
        is_same = np.abs(earlier - later) <= _SAME_WORK * np.maximum(earlier, later)
        is_same &= np.array([a == b for a, b in zip(names_per_group, names_per_group[period:])])
        if is_same.mean() >= _MIN_AGREEMENT:
            return period
    return 1


def _closing_group(events: Events, timeline: HostTimeline, group_stop: I64, period: int) -> int:
    """Index of the group of optimizers, among the first `period`, that ends a step: the one after which most batches
    are fetched, else the last. `group_stop`: end of each group, ns."""
    if period == 1:
        return 0
    fetches = events.host.start[_loader_rows(events, timeline)]
    next_stop = np.append(group_stop[1:], events.span[1])
    fetches_after_group = np.searchsorted(fetches, next_stop) - np.searchsorted(fetches, group_stop)
    counts = [int(fetches_after_group[offset::period].sum()) for offset in range(period)]
    return int(np.argmax(counts)) if any(counts) else period - 1


def _loader_rows(events: Events, timeline: HostTimeline) -> I64:
    """Host rows of the fetches of batches on the training thread, by the loader that fetches the most."""
    host = events.host
    is_loader = np.array([name.startswith(_LOADER) for name in events.names], bool)
    rows = np.flatnonzero(is_loader[host.name] & (host.what == NOTE) & (host.thread == timeline.thread))
    if not len(rows):
        return rows
    most_frequent_name = np.bincount(host.name[rows]).argmax()
    return rows[host.name[rows] == most_frequent_name]


def _fetched_batches(events: Events, timeline: HostTimeline) -> Iterator[Candidate]:
    """Yields at most one candidate: steps that begin with the fetch of a batch."""
    rows = _loader_rows(events, timeline)
    if len(rows) >= _MIN_REPEATS:
        yield Candidate("loader", events.host.start[rows], f"{len(rows):,} fetches by {_LOADER}")


def _repeated_annotations(events: Events, timeline: HostTimeline) -> tuple[list[Candidate], list[Candidate]]:
    """(Annotations around steps, other annotations) of the user on the training thread that repeat: candidates of steps
    that begin with such an annotation, each list in descending order of the annotations' total time.

    Annotations whose names differ only in numbers (`step 1`, `step 2`) are one group. They are around steps if the name
    contains step, iter or batch and they cover half of the time from the first to the last. Only annotations that are
    not inside another one of their group begin steps.
    """
    host, names = events.host, events.names
    is_named = np.array([not name.startswith(_FRAMEWORK) for name in names], bool)
    rows = np.flatnonzero((host.what == NOTE) & (host.thread == timeline.thread) & is_named[host.name])
    if not len(rows):
        return [], []
    group_of_text: dict[str, int] = {}  # name with each number replaced by N -> number of the group
    group_of_name = np.zeros(len(names), np.int64)  # by name number
    for name in np.unique(host.name[rows]).tolist():
        group_of_name[name] = group_of_text.setdefault(_NUMBER.sub("N", names[name]), len(group_of_text))
    texts = list(group_of_text)
    group, length = group_of_name[host.name[rows]], host.stop[rows] - host.start[rows]
    # Total time of each group; 0 for groups that are too small.
    total_ns = np.bincount(group, weights=length) * (np.bincount(group) >= _MIN_REPEATS)
    around_steps: list[Candidate] = []
    others: list[Candidate] = []
    for number in np.argsort(-total_ns, kind="stable")[:_MAX_ANNOTATIONS].tolist():
        outer = _outermost_among(events, rows[group == number])
        if total_ns[number] and len(outer) >= _MIN_REPEATS:
            text = texts[number]
            covered_ns = int((host.stop[outer] - host.start[outer]).sum())
            is_around = _STEP_NAME.search(text) and 2 * covered_ns >= host.stop[outer[-1]] - host.start[outer[0]]
            candidate = Candidate("annotation", host.start[outer], f"{len(outer):,} annotations {text[:60]!r}")
            (around_steps if is_around else others).append(candidate)
    return around_steps, others


def _outermost_among(events: Events, rows: I64) -> I64:
    """The host rows among `rows` that are not inside another one of them, in ascending order."""
    is_wanted = np.zeros(len(events.host), bool)
    is_wanted[rows] = True
    return outermost_rows(is_wanted, events.host.parent)
