"""FLOPs and bytes of ops, attributed to the work that they launched.

An interval belongs to the innermost op with a formula on the chain of its launch. Several kernels of one op (split-k
and its reduction, a convolution and its transposes) share its FLOPs and bytes by duration. An op that wraps another one
(linear around addmm, attention around its matrix products) would count the work twice: work that it launches directly
has zero FLOPs and bytes.

An interval is a kernel or copy of a device, or a stretch of a CPU op: a row of `Classified`. A host row is an index
into the columns of `HostSpans`. The cost of an op is the FLOPs and bytes of one call, by a formula of its arguments.
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
from trainyard.trace.readers.nesting import nearest_ancestor

HEAVY_CLASSES = ("matmul", "conv", "attention")
"""Op classes whose inner ops of other classes only prepare the work. Tuples of names and of indices into
words.OP_CLASSES."""
_MAX_SUM = 2**62
"""Limit on FLOPs and bytes: sums of two such numbers fit into 64 bits."""
_CLASS_NAMES = list(words.OP_CLASSES)
_HEAVY_CLASSES = [_CLASS_NAMES.index(name) for name in HEAVY_CLASSES]


class Arithmetic(NamedTuple):
    """For n intervals: `op`, the host row of the op that each belongs to (-1 none), and its FLOPs and bytes (-1 if
    unknown, also if only an upper bound of the FLOPs is known). For m host rows: `costed`, whether the row's own cost
    is known.
    """

    op: I32
    flops: I64
    bytes: I64
    costed: NDArray[np.bool_]


def measure_arithmetic(events: Events, context: Context, keys: Keys, classified: Classified) -> Arithmetic:
    """Measures FLOPs and bytes of all intervals of a rank.

    Compute has those of its op's formula; copies and fills have the bytes in the file and zero FLOPs; all others are
    unknown. `context`: op class of each host row; `keys`: account of each key of `classified`.
    """
    interval_count = len(classified.start)
    compute = np.array([account.kind == "compute" for account, _ in keys.pairs], bool)[classified.key]
    cost_index, costs = _cost_host_rows(events)
    costed_ancestor = nearest_ancestor(cost_index >= 0, events.host.parent)
    launched = np.flatnonzero(compute & (classified.launcher >= 0))
    launcher = classified.launcher[launched]
    op = np.full(interval_count, -1, np.int32)
    op[launched] = np.where(cost_index[launcher] >= 0, launcher, costed_ancestor[launcher])
    # The cost of ops that wrap others is taken away: the inner ops count.
    cost_index[_find_wrappers(np.unique(op[op >= 0]), costed_ancestor, context.op_class, cost_index, costs)] = -1

    moved_bytes = (
        np.where(compute, -1, events.work.bytes) if len(events.work) else np.full(interval_count, -1, np.int64)
    )
    flops = np.where(moved_bytes >= 0, 0, -1)
    # Work of an op with a cost has zero FLOPs and bytes unless it gets a share of the cost below.
    rows = np.flatnonzero(op >= 0)
    flops[rows] = moved_bytes[rows] = 0
    rows = rows[cost_index[op[rows]] >= 0]
    # An op's cost goes to the kernels of its own class, if it launched any; else to all that it launched.
    same_class = context.op_class[classified.launcher[rows]] == context.op_class[op[rows]]
    has_same_class = np.isin(op[rows], op[rows[same_class]])
    rows = rows[same_class | ~has_same_class]
    length = (classified.stop - classified.start)[rows]
    flops_per_call = np.array([-1 if cost.flops is None or cost.at_most else cost.flops for cost in costs], np.int64)
    flops[rows] = _divide_by_length(op[rows], length, flops_per_call[cost_index[op[rows]]])
    bytes_per_call = np.array([-1 if cost.bytes is None else cost.bytes for cost in costs], np.int64)
    moved_bytes[rows] = _divide_by_length(op[rows], length, bytes_per_call[cost_index[op[rows]]])
    return Arithmetic(op=op, flops=flops, bytes=moved_bytes, costed=cost_index >= 0)


def _cost_host_rows(events: Events) -> tuple[I32, tuple[Cost, ...]]:
    """Computes the cost of each op: (index of the cost for each host row, -1 for none; the costs).

    Calls with the same name and arguments share a cost, which is computed once: name and shape are packed into one
    integer.
    """
    host = events.host
    rows = np.flatnonzero((host.what == OP) & (host.shape >= 0))
    shape_count = max(1, len(events.shapes))
    pairs, inverse = np.unique(host.name[rows].astype(np.int64) * shape_count + host.shape[rows], return_inverse=True)
    costs: list[Cost] = []
    cost_indices: list[int] = []
    for name, shape in (divmod(pair, shape_count) for pair in pairs.tolist()):
        call_cost = cost_of(events.names[name], events.shapes[shape])
        cost_indices.append(-1 if call_cost is None else len(costs))
        costs += [call_cost] if call_cost else []
    cost_index = np.full(len(host), -1, np.int32)
    cost_index[rows] = np.array(cost_indices, np.int32)[inverse.reshape(-1)]
    return cost_index, tuple(costs)


def cost_of(op: str, shape: OperandShape) -> Cost | None:
    """FLOPs and bytes of one call, by the conventions stated in `products` and `traffic`; None if there is no formula
    for the op, or the file lacks a value that the formula needs."""
    namespace, _, name = op.partition("::")
    if namespace != "aten":
        return None
    signature_name = name if name in traffic.FORMULAS else name.removesuffix("_")
    args = OpArguments(shape, SIGNATURES.get(signature_name, ""))
    try:
        if signature_name in products.FORMULAS:
            cost = products.FORMULAS[signature_name](args)
        elif signature_name in traffic.FORMULAS:
            cost = traffic.FORMULAS[signature_name](args, name.endswith("_"))
        else:
            return None
    except (UnknownOperand, IndexError):  # IndexError: a tensor has fewer dims than the op takes.
        return None
    # Columns are 64 bits wide; real costs are smaller.
    return cost if max(cost.flops or 0, cost.bytes or 0) < _MAX_SUM else None


def _find_wrappers(rows: I32, costed_ancestor: I32, op_class: I8, cost_index: I32, costs: tuple[Cost, ...]) -> I32:
    """Host rows of the ops around `rows` that wrap others which do their work.

    That is any op around an op that computes (has FLOPs); an op of a heavy class (a matrix product, convolution or
    attention) only if an op inside it is heavy too, since others only prepare its work. Per host row:
    `costed_ancestor`: the innermost op with a cost around it, -1 for none; `op_class`: index into words.OP_CLASSES;
    `cost_index`: index into `costs`, -1 for none.
    """
    computes = np.array([bool(cost.flops) for cost in costs], bool)
    inner, outer = rows, costed_ancestor[rows]
    wrappers = [np.empty(0, np.int32)]
    # In each round `outer` is the next op with a cost around each of `inner`, which stays the innermost one.
    while (has_outer := outer >= 0).any():
        inner, outer = inner[has_outer], outer[has_outer]
        heavy = np.isin(op_class[inner], _HEAVY_CLASSES)
        wrappers.append(outer[heavy | (computes[cost_index[inner]] & ~np.isin(op_class[outer], _HEAVY_CLASSES))])
        outer = costed_ancestor[outer]
    return np.unique(np.concatenate(wrappers))


def _divide_by_length(op: I32, length_ns: I64, op_total: I64) -> I64:
    """Divides each op's total over its intervals in proportion to their length, as integers that sum to it.

    The columns have one element for each interval: the host row of its op, its own length, and its op's total (-1:
    unknown, and so are the shares). Returns the share of each interval.
    """
    order = np.argsort(op, kind="stable")
    first = np.flatnonzero(np.diff(op[order], prepend=-1))
    sizes = np.diff(first, append=len(order))
    shares = op_total.copy()
    for begin, size in zip(first[sizes > 1].tolist(), sizes[sizes > 1].tolist()):
        rows = order[begin : begin + size]
        if op_total[rows[0]] >= 0:
            shares[rows] = apportion(int(op_total[rows[0]]), length_ns[rows].tolist())
    return shares


def apportion(whole: int, weights: list[int]) -> list[int]:
    """Divides `whole` by weights into integers that sum to it: floors, plus 1 for the largest remainders. If all
    weights are zero, the first gets all."""
    total = sum(weights)
    if not total:
        return [whole, *[0] * (len(weights) - 1)]
    shares = [whole * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(whole * weights[i] % total))
    for i in by_remainder[: whole - sum(shares)]:
        shares[i] += 1
    return shares


def sum_by_part_and_key(column: I64, classified: Classified, bounds: I64, key_count: int) -> I64:
    """[p, k]: sums of `column` over each key's intervals that start in each part of the window.

    `column`: one value for each interval of `classified`, -1 if unknown; part i is [bounds[i], bounds[i + 1]) in ns;
    `key_count`: k. A sum is -1 if any of its values is unknown, or so large that the sum could overflow, and for keys
    without intervals.
    """
    part = np.searchsorted(bounds, classified.start, "right") - 1
    inside = np.flatnonzero((part >= 0) & (part < len(bounds) - 1))
    part_and_key = (part[inside], classified.key[inside])
    value = column[inside]
    count, total = np.zeros((2, len(bounds) - 1, key_count), np.int64)
    np.add.at(count, part_and_key, 1)
    np.add.at(total, part_and_key, value)
    is_unknown = (value < 0) | (value > _MAX_SUM // count[part_and_key])
    unknown_cells = np.zeros(total.shape, bool)
    unknown_cells[tuple(axis[is_unknown] for axis in part_and_key)] = True
    unknown_cells[:, np.setdiff1d(np.arange(key_count), classified.key)] = True
    return np.where(unknown_cells, -1, total)
