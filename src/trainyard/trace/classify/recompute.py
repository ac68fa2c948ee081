"""Which ops inside the backward pass are forward work done again (activation checkpointing).

A framework numbers an op where gradients are recorded. The backward pass records none, so numbered ops inside one of
its nodes are a forward pass run there, whichever node it is that needs its results first. Two things only look so:

- `Function.apply` numbers itself whether gradients are recorded or not, and a node may be computed with such
  (a redistribution whose gradient is another). What stands after it in the node tells: recorded work or a pass of the
  engine, else it is the node's own.
- Gradients of gradients: the node's own work is recorded to its end, where after recomputation it is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainyard.events import OP, HostSpans
from trainyard.trace.readers.nesting import nearest

ENGINE = "autograd::engine::evaluate_function"
_COMPILED = "CompiledFunction"
"""torch.compile's: it stands for the ops it was made of, and no gradient is computed with it."""


def done_again(host: HostSpans, names: tuple[str, ...]) -> NDArray[np.bool_]:
    """Of m host rows those that begin such work, where what is around them is of the backward pass."""
    again = np.zeros(len(host), bool)
    engine = np.array([name.startswith(ENGINE) for name in names], bool)[host.name]
    op = host.what == OP
    node = op & (engine | (host.backward > 0))
    numbered = op & (host.seq >= 0) & ~node
    if not engine.any():  # a reader of another framework's file numbers what was done again, and nothing else
        return numbered
    around = nearest(op, host.parent)
    rows = np.flatnonzero(op & (around >= 0))
    rows = rows[~numbered[around[rows]]]  # what is inside of numbered work is of its phase
    if not len(rows):
        return again
    # The ops of one parent side by side, in order of start.
    rows = rows[np.argsort(around[rows], kind="stable")]
    first = np.flatnonzero(np.diff(around[rows], prepend=-1))
    group = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))

    dispatched = np.array(["::" in name for name in names], bool)[host.name[rows]]
    compiled = np.array([name == _COMPILED for name in names], bool)[host.name[rows]]
    recorded = numbered[rows] & (dispatched | compiled)
    applied = numbered[rows] & ~recorded
    evaluates = engine[rows]
    last = np.append(first[1:], len(rows)) - 1
    of_gradients = recorded[last] & ~compiled[last] & node[around[rows[last]]]
    of_gradients &= ~np.logical_or.reduceat(evaluates, first)
    again[rows] = recorded | (applied & _next_is(recorded | evaluates, applied | node[rows] & ~evaluates, group))
    again[rows] &= ~of_gradients[group]
    return again


def _next_is(wanted: NDArray[np.bool_], silent: NDArray[np.bool_], group: NDArray[np.intp]) -> NDArray[np.bool_]:
    """For each place whether the next one after it that is not silent is wanted, and of its group."""
    n = len(wanted)
    speaks = np.where(silent, n, np.arange(n))
    following = np.append(np.minimum.accumulate(speaks[::-1])[::-1][1:], n)
    return np.append(wanted, False)[following] & (np.append(group, -1)[following] == group)
