"""Evidence of training on the host: forward ops whose gradient was computed, backward nodes, and optimizer steps.

A node is an op of the backward pass, created by the forward op whose gradient it computes; both have the same autograd
sequence number (`HostSpans.seq`, -1 for none). A host row is an index into the columns of `HostSpans`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.events import I64, NOTE, OP, HostSpans
from trainyard.trace.readers.nesting import outermost_rows

OPTIMIZER_STEP = "Optimizer.step#"
ENGINE_PREFIX = "autograd::engine::evaluate_function"

Mask = NDArray[np.bool_]
NO_ROWS: I64 = np.empty(0, np.int64)
_NEVER = np.iinfo(np.int64).min
"""A time (ns) before all others."""


class Passes(NamedTuple):
    """Rows of `HostSpans`, each in ascending order. `forward`: ops that created a node which the backward pass ran;
    `backward`: nodes; `optimizer`: the outermost `Optimizer.step#` annotations (a wrapper's annotation encloses that
    of the optimizer which it wraps)."""

    forward: I64
    backward: I64
    optimizer: I64


def find_passes(host: HostSpans, names: tuple[str, ...]) -> Passes:
    """Finds the passes of a trace, of all threads. `names`: text of each name number in `host.name`."""
    is_backward = is_node(host, names)
    nodes = np.flatnonzero(is_backward)
    ops = np.flatnonzero((host.what == OP) & (host.seq >= 0) & ~is_backward) if len(nodes) else NO_ROWS
    return Passes(creating_rows(host, ops, nodes), nodes, _optimizer_rows(host, names))


def is_node(host: HostSpans, names: tuple[str, ...]) -> Mask:
    """Whether each host row is a node of the backward pass or its evaluation by the autograd engine."""
    is_engine = np.array([name.startswith(ENGINE_PREFIX) for name in names], bool)
    return (host.what == OP) & (is_engine[host.name] | (host.backward > 0))


def creating_rows(host: HostSpans, ops: I64, nodes: I64, group: I64 | None = None) -> I64:
    """The rows of `ops` that created a node of the backward pass, in ascending order.

    `ops`, `nodes`: host rows of ops and of nodes, ascending; rows without a sequence number are ignored. `group`: a
    number (at least 0 for `ops` and `nodes`) for each host row, if an op and its node must agree in it; None if not. An
    op that creates no node has the sequence number of the next node, so that the last op with a number created its
    node.
    """
    ops, nodes = ops[host.seq[ops] >= 0], nodes[host.seq[nodes] >= 0]
    both = np.concatenate([ops, nodes])
    numbers, number = np.unique(host.seq[both], return_inverse=True)
    # Sequence number and group as one number. The last op with each number is the first in reverse order.
    number = number.reshape(-1) + (0 if group is None else group[both] * len(numbers))
    distinct, last = np.unique(number[: len(ops)][::-1], return_index=True)
    has_node = np.isin(distinct, number[len(ops) :])
    return np.sort(ops[::-1][last][has_node])


def rows_before_update(host: HostSpans, passes: Passes) -> Mask:
    """Whether each host row begins after a backward pass and before the optimizer step that follows it.

    Gradient clipping and the loss scaler's check for infinities do. Such a row is not a part of the forward pass, even
    if gradients are recorded.
    """
    update_start = host.start[passes.optimizer]
    # For each optimizer step: the last end of backward work before it, and the last forward op or update before it.
    backward_stop = _latest(np.sort(host.stop[passes.backward]), update_start)
    previous_update = np.append(_NEVER, update_start[:-1])[: len(update_start)]
    other_start = np.maximum(_latest(host.start[passes.forward], update_start), previous_update)
    follows_backward = (backward_stop > _NEVER) & (other_start <= backward_stop)
    # +1 at the first row after each such backward pass, -1 at its update: the running sum is positive in between.
    change = np.zeros(len(host) + 1, np.int32)
    np.add.at(change, np.searchsorted(host.start, backward_stop[follows_backward]), 1)
    np.add.at(change, np.searchsorted(host.start, update_start[follows_backward]), -1)
    return np.cumsum(change[:-1]) > 0


def _latest(times: I64, until: I64) -> I64:
    """The last of the sorted `times` up to each time of `until`, `_NEVER` if there is none."""
    return np.append(_NEVER, times)[np.searchsorted(times, until, "right")]


def _optimizer_rows(host: HostSpans, names: tuple[str, ...]) -> I64:
    """Host rows of the outermost `Optimizer.step#` annotations."""
    is_step_name = np.array([name.startswith(OPTIMIZER_STEP) for name in names], bool)
    if not is_step_name.any():
        return NO_ROWS
    return outermost_rows(is_step_name[host.name] & (host.what == NOTE), host.parent)
