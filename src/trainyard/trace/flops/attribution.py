"""FLOPs and bytes of ops, attributed to the work that they launched.

An interval belongs to the innermost op with a formula on the chain of its launch. Several kernels of one op (split-k
and its reduction, a convolution and its transposes) share its FLOPs and bytes by duration. An op that wraps another one
(linear around addmm, attention around its matrix products) would count the work twice: work that it launches directly
has zero FLOPs and bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I8, I32, I64, OP, Events, OperandShape
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.kernels import Classified, Keys
from trainyard.trace.flops import products, traffic
from trainyard.trace.flops.operands import Cost, OpArguments, UnknownOperand
from trainyard.trace.flops.signatures import SIGNATURES
from trainyard.trace.readers.nesting import nearest

HEAVY = ("matmul", "conv", "attention")
"""Op classes whose inner ops of other classes only prepare the work."""
_MOST = 2**62
_CLASSES = list(words.OP_CLASSES)
_HEAVY = [_CLASSES.index(name) for name in HEAVY]


class Arithmetic(NamedTuple):
    """For n intervals: `op`, the host row of the op that each belongs to (-1 none), and its FLOPs and bytes (-1 if
    unknown, also if only an upper bound of the FLOPs is known). For m host rows: `costed`, whether the row's own cost
    is known.
    """

    op: I32
    flops: I64
    bytes: I64
    costed: NDArray[np.bool_]


def arithmetic(events: Events, context: Context, keys: Keys, classified: Classified) -> Arithmetic:
    """Arithmetic of all intervals: compute by formula, copies and fills by the bytes in the file, others unknown."""
    n = len(classified.start)
    compute = np.array([account.kind == "compute" for account, _ in keys.pairs], bool)[classified.key]
    cost, costs = _costs(events)
    above = nearest(cost >= 0, events.host.parent)
    launched = np.flatnonzero(compute & (classified.launcher >= 0))
    launcher = classified.launcher[launched]
    op = np.full(n, -1, np.int32)
    op[launched] = np.where(cost[launcher] >= 0, launcher, above[launcher])
    cost[_around(np.unique(op[op >= 0]), above, context.op_class, cost, costs)] = -1

    moved = np.where(compute, -1, events.work.bytes) if len(events.work) else np.full(n, -1, np.int64)
    flops = np.where(moved >= 0, 0, -1)
    rows = np.flatnonzero(op >= 0)
    flops[rows] = moved[rows] = 0
    rows = rows[cost[op[rows]] >= 0]
    # An op's cost goes to the kernels of its own class, if it launched any; else to all that it launched.
    same_class = context.op_class[classified.launcher[rows]] == context.op_class[op[rows]]
    some = np.isin(op[rows], op[rows[same_class]])
    rows = rows[same_class | ~some]
    length = (classified.stop - classified.start)[rows]
    known = np.array([-1 if each.flops is None or each.at_most else each.flops for each in costs], np.int64)
    flops[rows] = _shares(op[rows], length, known[cost[op[rows]]])
    known = np.array([-1 if each.bytes is None else each.bytes for each in costs], np.int64)
    moved[rows] = _shares(op[rows], length, known[cost[op[rows]]])
    return Arithmetic(op, flops, moved, cost >= 0)


def _costs(events: Events) -> tuple[I32, tuple[Cost, ...]]:
    """For each host row the index of its cost, -1 for none; and the costs."""
    host = events.host
    rows = np.flatnonzero((host.what == OP) & (host.shape >= 0))
    width = max(1, len(events.shapes))
    pairs, inverse = np.unique(host.name[rows].astype(np.int64) * width + host.shape[rows], return_inverse=True)
    costs: list[Cost] = []
    numbers: list[int] = []
    for name, shape in (divmod(pair, width) for pair in pairs.tolist()):
        call_cost = cost_of(events.names[name], events.shapes[shape])
        numbers.append(-1 if call_cost is None else len(costs))
        costs += [call_cost] if call_cost else []
    cost = np.full(len(host), -1, np.int32)
    cost[rows] = np.array(numbers, np.int32)[inverse.reshape(-1)]
    return cost, tuple(costs)


def cost_of(op: str, shape: OperandShape) -> Cost | None:
    """FLOPs and bytes of one call, by the conventions stated in `products` and `traffic`; None if there is no formula
    for the op, or the file lacks a value that the formula needs."""
    space, _, name = op.partition("::")
    if space != "aten":
        return None
    bare = name if name in traffic.FORMULAS else name.removesuffix("_")
    given = OpArguments(shape, SIGNATURES.get(bare, ""))
    try:
        if bare in products.FORMULAS:
            cost = products.FORMULAS[bare](given)
        elif bare in traffic.FORMULAS:
            cost = traffic.FORMULAS[bare](given, name.endswith("_"))
        else:
            return None
    except (UnknownOperand, IndexError):  # IndexError: a tensor has fewer dims than the op takes.
        return None
    # Columns are 64 bits wide; real costs are smaller.
    return cost if max(cost.flops or 0, cost.bytes or 0) < _MOST else None


def _around(rows: I32, above: I32, op_class: I8, cost: I32, costs: tuple[Cost, ...]) -> I32:
    """Ops that wrap others which do their work: ops around any op that computes; heavy ops only around heavy ones."""
    computes = np.array([bool(each.flops) for each in costs], bool)
    inner, outer = rows, above[rows]
    wrappers = [np.empty(0, np.int32)]
    while (on := outer >= 0).any():
        inner, outer = inner[on], outer[on]
        heavy = np.isin(op_class[inner], _HEAVY)
        wrappers.append(outer[heavy | (computes[cost[inner]] & ~np.isin(op_class[outer], _HEAVY))])
        outer = above[outer]
    return np.unique(np.concatenate(wrappers))


def _shares(op: I32, length: I64, whole: I64) -> I64:
    """Divides each op's `whole` (-1: unknown) over its intervals in proportion to their length."""
    order = np.argsort(op, kind="stable")
    first = np.flatnonzero(np.diff(op[order], prepend=-1))
    sizes = np.diff(first, append=len(order))
    shares = whole.copy()
    for begin, size in zip(first[sizes > 1].tolist(), sizes[sizes > 1].tolist()):
        rows = order[begin : begin + size]
        if whole[rows[0]] >= 0:
            shares[rows] = apportion(int(whole[rows[0]]), length[rows].tolist())
    return shares


def apportion(whole: int, weights: list[int]) -> list[int]:
    """Divides `whole` by weights into integers that sum to it: floors, plus 1 for the largest remainders. If all
    weights are zero, the first gets all."""
    total = sum(weights)
    if not total:
        return [whole, *[0] * (len(weights) - 1)]
    shares = [whole * weight // total for weight in weights]
    last = sorted(range(len(weights)), key=lambda i: -(whole * weights[i] % total))
    for i in last[: whole - sum(shares)]:
        shares[i] += 1
    return shares


def by_part(column: I64, classified: Classified, bounds: I64, keys: int) -> I64:
    """[p, k]: sum of `column` over each key's intervals that start in each part; -1 if any of them is unknown or so
    large that the sum could overflow, and for keys without intervals."""
    part = np.searchsorted(bounds, classified.start, "right") - 1
    inside = np.flatnonzero((part >= 0) & (part < len(bounds) - 1))
    cell = (part[inside], classified.key[inside])
    value = column[inside]
    count, total = np.zeros((2, len(bounds) - 1, keys), np.int64)
    np.add.at(count, cell, 1)
    np.add.at(total, cell, value)
    lost = (value < 0) | (value > _MOST // count[cell])
    unknown = np.zeros(total.shape, bool)
    unknown[tuple(axis[lost] for axis in cell)] = True
    unknown[:, np.setdiff1d(np.arange(keys), classified.key)] = True
    return np.where(unknown, -1, total)
