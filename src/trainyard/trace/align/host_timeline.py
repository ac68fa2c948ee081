"""The training thread's work in the order of time: ops, and the evidence of training and evaluation.

`infer_steps` and `between_steps` use it to find steps and the work between them. A host row is an index into the
columns of `HostSpans`; a node is an op of the backward pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I32, I64, OP, Events
from trainyard.trace.classify.context import PHASES, Context
from trainyard.trace.readers.nesting import outermost_rows

_MODEL_CLASSES = ("matmul", "attention", "conv")
"""Op classes of which a model's forward pass consists, unlike metrics, logging and the preparation of batches."""
_FORWARD = PHASES.index("forward")

Mask = NDArray[np.bool_]


class Spans(NamedTuple):
    """k intervals of the host, sorted by start, in ns."""

    start: I64
    stop: I64

    def starting_in(self, start: I64, stop: I64) -> I64:
        """How many of the k intervals start in each of n intervals [start, stop), ns; shape (n,)."""
        return np.searchsorted(self.start, stop, "left") - np.searchsorted(self.start, start, "left")


class HostTimeline(NamedTuple):
    """One rank's host work. `thread`: the training thread; `model`: its matrix products, attention and convolutions;
    `in_forward`: whether each of them is in the forward phase; `training`: forward ops whose gradient was computed,
    backward nodes and optimizer steps of all threads; `backward`, `optimizer`: only those."""

    thread: int
    model: Spans
    in_forward: Mask
    training: Spans
    backward: Spans
    optimizer: Spans


def build_timeline(events: Events, context: Context) -> HostTimeline:
    """The host work of a rank. `context`: op class and phase of each host row, and the rows of the passes."""
    host, passes = events.host, context.passes
    thread = training_thread(events, context)
    # By op class. Rows without a class have the index -1: the last element, which is false.
    is_model_class = np.array([name in _MODEL_CLASSES for name in (*words.OP_CLASSES, "")], bool)
    is_model = is_model_class[context.op_class] & (host.what == OP) & (host.thread == thread)
    # The compiler runs the model's ops on fake tensors, which is not an evaluation.
    is_model &= ~np.array([*(cause == "launch_gap/compile" for cause in context.causes), False], bool)[context.cause]
    model = np.flatnonzero(is_model)
    # `aten::linear` calls `aten::addmm`: of nested ops of one class only the outermost counts.
    parent = host.parent[model]
    model = model[(parent < 0) | (context.op_class[parent] != context.op_class[model])]
    training = np.sort(np.concatenate([passes.forward, passes.backward, passes.optimizer]))
    return HostTimeline(
        thread=thread,
        model=_spans(events, model),
        in_forward=context.phase[model] == _FORWARD,
        training=_spans(events, training),
        backward=_spans(events, passes.backward),
        optimizer=_spans(events, passes.optimizer),
    )


class WorkItems(NamedTuple):
    """n ops of the host or, without any, launches of device work. `name`: index into `Events.names`, for a launch that
    of the device work."""

    spans: Spans
    name: I32


def work_items(events: Events, thread: int) -> WorkItems:
    """The outermost ops of a thread; the launches of device work from all threads if it has no op. `thread`: its number
    in `host.thread`."""
    host, ops = events.host, outermost_ops(events, thread)
    if len(ops):
        return WorkItems(_spans(events, ops), host.name[ops])
    # Rows of device work whose launch was recorded, in the order of the launches.
    rows = np.flatnonzero(events.work.call >= 0)
    rows = rows[np.argsort(host.start[events.work.call[rows]], kind="stable")]
    return WorkItems(_spans(events, events.work.call[rows]), events.work.name[rows])


def outermost_ops(events: Events, thread: int) -> I64:
    """Host rows of a thread's ops that are not inside another op."""
    return outermost_rows((events.host.what == OP) & (events.host.thread == thread), events.host.parent)


def training_thread(events: Events, context: Context) -> int:
    """The number of the thread that runs the optimizer or, without one, the forward pass.

    If the events have marks (step annotations, or inferred steps), `events.main` is that thread already. If not, it is
    the thread with the most time in ops, which may be that of the backward pass, and is the fallback only.
    """
    if events.marks:
        return events.main
    for rows in (context.passes.optimizer, context.passes.forward):
        if len(rows):
            return int(np.bincount(events.host.thread[rows]).argmax())
    return events.main


def _spans(events: Events, rows: I32 | I64) -> Spans:
    return Spans(events.host.start[rows], events.host.stop[rows])
