"""Forward and backward passes that run inside `Optimizer.step`, as the closure of `optimizer.step(closure)`.

PyTorch Lightning passes a closure to every optimizer, and LBFGS evaluates one several times per step. The annotation
`Optimizer.step#` then encloses more than the parameter update. An evaluation of a closure begins with the first forward
work and ends with the last work of the backward pass. Forward work is a numbered op whose sequence number a backward
node repeats within the same annotation, or a frame of an `nn.Module`. Optimizers update parameters without recording
gradients, so that the update itself has no sequence number; if it has, no backward node of the same annotation repeats
it. A node is an op of the backward pass; a host row is an index into the columns of `HostSpans`, whose `what` is the
kind of span (OP, NOTE: an annotation, PYTHON: a frame), `parent` the row of the enclosing span and `seq` the sequence
number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.events import I64, NOTE, OP, PYTHON, HostSpans
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.trace.classify.passes import NO_ROWS, Mask, Passes, creating_rows, is_node
from trainyard.trace.readers.nesting import nearest_ancestor, outermost_rows

_NO_TIMES: I64 = np.empty(0, np.int64)


class Evaluations(NamedTuple):
    """k evaluations of closures, sorted by start. `start`, `stop`: ns; `thread`: the thread of the optimizer."""

    start: I64
    stop: I64
    thread: I64

    def contains(self, time: I64, thread: int) -> Mask:
        """Whether each time (ns) lies in an evaluation on `thread`; evaluations of one thread do not overlap."""
        rows = np.flatnonzero(self.thread == thread)
        start, stop = self.start[rows], self.stop[rows]
        index = np.searchsorted(start, time, "right") - 1
        return (index >= 0) & (time < np.append(stop, 0)[index])  # index -1 reads the appended 0


_NO_EVALUATIONS = Evaluations(NO_ROWS, NO_ROWS, NO_ROWS)


def find_evaluations(host: HostSpans, names: tuple[str, ...], passes: Passes) -> Evaluations:
    """Finds all evaluations of closures in a trace; none if no optimizer evaluates one.

    `names`: text of each name number in `host.name`; `passes`: the host rows of backward passes and optimizer steps.
    """
    # Host rows of the `Optimizer.step#` annotations that may contain an evaluation, handled thread by thread.
    steps = passes.optimizer[_enclose_passes(host, names, passes)] if len(passes.optimizer) else NO_ROWS
    threads = np.unique(host.thread[steps]).tolist()
    by_thread = [_evaluations_on_thread(host, names, steps[host.thread[steps] == thread], thread) for thread in threads]
    start, stop, thread = (np.concatenate(column) for column in zip(_NO_EVALUATIONS, *by_thread))
    order = np.argsort(start, kind="stable")
    return Evaluations(start[order], stop[order], thread[order])


def _enclose_passes(host: HostSpans, names: tuple[str, ...], passes: Passes) -> Mask:
    """Whether a backward node or a module's frame begins during each of the rows `passes.optimizer`.

    For most optimizers none does, which saves the search for evaluations.
    """
    modules = np.flatnonzero(_is_module(host, names))
    start, stop = host.start[passes.optimizer], host.stop[passes.optimizer]
    counts = [
        np.searchsorted(host.start[rows], stop, "left") - np.searchsorted(host.start[rows], start, "left")
        for rows in (passes.backward, modules)
    ]
    return counts[0] + counts[1] > 0


def _is_module(host: HostSpans, names: tuple[str, ...]) -> Mask:
    """Whether each host row is the frame of an `nn.Module`."""
    is_module_name = np.array([name.startswith(MODULE_PREFIX) for name in names], bool)
    return is_module_name[host.name] & ((host.what == NOTE) | (host.what == PYTHON))


def rows_of_evaluations(host: HostSpans, evaluations: Evaluations) -> Mask:
    """Whether each of m host rows begins inside an evaluation on its own thread."""
    inside = np.zeros(len(host), bool)
    for thread in np.unique(evaluations.thread).tolist():
        rows = np.flatnonzero(host.thread == thread)
        inside[rows] = evaluations.contains(host.start[rows], thread)
    return inside


def _evaluations_on_thread(host: HostSpans, names: tuple[str, ...], steps: I64, thread: int) -> Evaluations:
    """The evaluations in the annotations `steps` (host rows on the thread with number `thread`, in order of start)."""
    evidence = _find_evidence(host, names, steps, thread)
    order = np.lexsort((evidence.start, evidence.step))
    start, stop, step = evidence.start[order], evidence.stop[order], evidence.step[order]
    is_backward = evidence.is_backward[order]
    if not len(start):
        return _NO_EVALUATIONS
    # The evidence, sorted by annotation and start, is divided into runs. A run begins with each annotation, and after
    # backward work with each forward work: forward and backward work in turn are several evaluations.
    begins = np.append(True, (step[1:] != step[:-1]) | (is_backward[:-1] & ~is_backward[1:]))
    first = np.flatnonzero(begins)
    last_ns = np.minimum(np.maximum.reduceat(stop, first), host.stop[steps[step[first]]])
    is_evaluation = ~is_backward[first]  # a backward pass without a forward pass does not belong to a closure
    first, last_ns = first[is_evaluation], last_ns[is_evaluation]
    return Evaluations(start[first], last_ns, np.full(len(first), thread, np.int64))


class _Evidence(NamedTuple):
    """Work of forward and backward passes inside annotations. `start`, `stop`: ns; `step`: index of the annotation in
    the list of optimizer steps; `is_backward`: whether it is a node of a backward pass."""

    start: I64
    stop: I64
    step: I64
    is_backward: Mask


def _find_evidence(host: HostSpans, names: tuple[str, ...], steps: I64, thread: int) -> _Evidence:
    """Finds work of forward passes on `thread`, and of backward passes on any, inside the annotations `steps`.

    `steps`: host rows, in order of start. Forward work is an outermost op that created a node of the same annotation's
    backward pass, or a module's frame. Ops with a sequence number right before forward work prepare its inputs and are
    a part of it. The result is not sorted.
    """
    step = _enclosing_step(host, steps)  # for each host row: index into `steps`, -1 outside
    is_backward = is_node(host, names)
    nodes = np.flatnonzero(is_backward & (step >= 0))
    is_op = (host.what == OP) & (step >= 0) & (host.thread == thread)
    ops = outermost_rows(is_op, host.parent)
    created = creating_rows(host, np.flatnonzero(is_op & ~is_backward), nodes, step)
    # `index`: positions in `ops` of the outermost ops that are, or contain, the ops which created nodes.
    index = np.unique(np.searchsorted(ops, created, "right") - 1)
    index = index[~is_backward[ops[index]]]
    # Forward work begins after the last op without a sequence number: `after_update[i]` is the position in `ops` after
    # the last such op up to position i.
    is_update = (host.seq[ops] < 0) | is_backward[ops]
    after_update = np.maximum.accumulate(np.where(is_update, np.arange(len(ops)) + 1, 0))
    prepared_from = ops[np.minimum(after_update[index], index)]

    is_module = _is_module(host, names) & (step >= 0) & (host.thread == thread)
    # A module's frame inside a backward node is recomputed, and not a forward pass.
    modules = np.flatnonzero(is_module & (nearest_ancestor(is_backward, host.parent) < 0))
    return _Evidence(
        start=np.concatenate([host.start[prepared_from], host.start[modules], host.start[nodes]]),
        stop=np.concatenate([host.stop[ops[index]], host.stop[modules], host.stop[nodes]]),
        step=np.concatenate([step[ops[index]], step[modules], step[nodes]]),
        is_backward=np.repeat([False, False, True], [len(index), len(modules), len(nodes)]),
    )


def _enclosing_step(host: HostSpans, steps: I64) -> I64:
    """For each host row of any thread, the index in `steps` of the annotation during which it begins; -1 for none.

    `steps`: host rows of annotations that do not overlap, in order of start.
    """
    index = np.searchsorted(host.start[steps], host.start, "right") - 1
    return np.where((index >= 0) & (host.start < np.append(host.stop[steps], 0)[index]), index, -1)
