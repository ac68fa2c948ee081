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
from trainyard.events import I8, I32, I64, OP, Events
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.kernels import Classified, Keys
from trainyard.trace.flops.lists import element_format
from trainyard.trace.flops.op_costs import BUILT_IN, MAX_COST, Formulas, cost_of
from trainyard.trace.flops.operands import CallFacts, Cost
from trainyard.trace.flops.partners import find_partners
from trainyard.trace.readers.nesting import nearest_ancestor

HEAVY_CLASSES = ("matmul", "conv", "attention")
"""Op classes whose inner ops of other classes only prepare the work. Tuples of names and of indices into
words.OP_CLASSES."""
_CLASS_NAMES = list(words.OP_CLASSES)
_HEAVY_CLASSES = [_CLASS_NAMES.index(name) for name in HEAVY_CLASSES]


class Arithmetic(NamedTuple):
    """For n intervals: `op`, the host row of the op that each belongs to (-1 none), and its FLOPs and bytes (-1 if
    unknown, also if only an upper bound of the FLOPs is known). For m host rows: `cost`, the index of the row's own
    cost in `costs`, -1 if it is unknown.
    """

    op: I32
    flops: I64
    bytes: I64
    cost: I32
    costs: tuple[Cost, ...] = ()


def measure_arithmetic(
    events: Events, context: Context, keys: Keys, classified: Classified, formulas: Formulas = BUILT_IN
) -> Arithmetic:
    """Measures FLOPs and bytes of all intervals of a rank.

    Compute has those of its op's formula; copies and fills have the bytes in the file and zero FLOPs; all others are
    unknown. `context`: op class of each host row; `keys`: account of each key of `classified`; `formulas`: those of
    the package and of the user.
    """
    interval_count = len(classified.start)
    compute = np.array([account.kind == "compute" for account, _ in keys.pairs], bool)[classified.key]
    cost_index, costs = _cost_host_rows(events, classified, formulas)
    costed_ancestor = nearest_ancestor(cost_index >= 0, events.host.parent)
    launched = np.flatnonzero(compute & (classified.launcher >= 0))
    launcher = classified.launcher[launched]
    op = np.full(interval_count, -1, np.int32)
    op[launched] = np.where(cost_index[launcher] >= 0, launcher, costed_ancestor[launcher])
    # The cost of ops that wrap others is taken away: the inner ops count.
    is_library = np.array([not name.startswith("aten::") for name in events.names], bool)[events.host.name]
    rows = np.unique(op[op >= 0])
    cost_index[_find_wrappers(rows, costed_ancestor, context.op_class, is_library, cost_index, costs)] = -1

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
    return Arithmetic(op=op, flops=flops, bytes=moved_bytes, cost=cost_index, costs=costs)


def _cost_host_rows(events: Events, classified: Classified, formulas: Formulas) -> tuple[I32, tuple[Cost, ...]]:
    """Computes the cost of each op: (index of the cost for each host row, -1 for none; the costs).

    Calls with the same name, arguments and facts (see `_facts_of_rows`) share a cost, which is computed once: name,
    shape and facts are packed into one integer.
    """
    host = events.host
    if not formulas.are_applied:
        return np.full(len(host), -1, np.int32), ()
    rows = np.flatnonzero((host.what == OP) & (host.shape >= 0))
    facts_of_row, facts = _facts_of_rows(events, classified, rows, formulas)
    shape_count, facts_count = max(1, len(events.shapes)), len(facts)
    identity = (host.name[rows].astype(np.int64) * shape_count + host.shape[rows]) * facts_count + facts_of_row
    identities, inverse = np.unique(identity, return_inverse=True)
    costs: list[Cost] = []
    cost_indices: list[int] = []
    for pair, fact in (divmod(identity, facts_count) for identity in identities.tolist()):
        name, shape = divmod(pair, shape_count)
        call_cost = cost_of(events.names[name], events.shapes[shape], facts[fact], formulas)
        cost_indices.append(-1 if call_cost is None else len(costs))
        costs += [call_cost] if call_cost else []
    cost_index = np.full(len(host), -1, np.int32)
    cost_index[rows] = np.array(cost_indices, np.int32)[inverse.reshape(-1)]
    return cost_index, tuple(costs)


def _facts_of_rows(
    events: Events, classified: Classified, rows: I64, formulas: Formulas
) -> tuple[I64, list[CallFacts]]:
    """(For each of the host rows `rows` the index of its facts; the facts, of which the first are empty). They are the
    element format of ops with lists of tensors, by the first kernel that they launched, and the arguments of the op's
    other half."""
    host = events.host
    partner = find_partners(events, rows, formulas)[rows]
    partner_shape = np.where(partner >= 0, host.shape[partner], -1).astype(np.int64)
    kernel = np.full(len(host), -1, np.int64)
    has_lists = np.array([bool(shape.lists) for shape in events.shapes] or [False], bool)
    with_lists = (host.what == OP) & (host.shape >= 0) & has_lists[host.shape]
    if with_lists.any():
        launched = np.flatnonzero(classified.launcher >= 0)[::-1]
        launcher = classified.launcher[launched]
        op = np.where(with_lists[launcher], launcher, nearest_ancestor(with_lists, host.parent)[launcher])
        kernel[op[op >= 0]] = classified.name[launched[op >= 0]]  # the last assignment is the first kernel
    pairs, inverse = np.unique(np.stack([partner_shape, kernel[rows]]), axis=1, return_inverse=True)
    facts = [
        CallFacts(
            element=element_format(events.names[name]) if name >= 0 else None,
            partner=events.shapes[shape] if shape >= 0 else None,
        )
        for shape, name in pairs.T.tolist()
    ]
    return inverse.reshape(-1).astype(np.int64), facts or [CallFacts()]


def _find_wrappers(
    rows: I32,
    costed_ancestor: I32,
    op_class: I8,
    is_library: NDArray[np.bool_],
    cost_index: I32,
    costs: tuple[Cost, ...],
) -> I32:
    """Host rows of the ops around `rows` that wrap others which do their work: any op around a heavy one; ATen's other
    ops around one that computes; a library's around one with at least half of its FLOPs and bytes, since its function
    also calls ops that only prepare its work. Per host row: `costed_ancestor`: the innermost op with a cost around it,
    -1 for none; `op_class`: index into words.OP_CLASSES; `is_library`: whether the op is not ATen's; `cost_index`:
    index into `costs`, -1 for none."""
    computes = np.array([bool(cost.flops) for cost in costs], bool)
    on_matrix_units = np.array([bool(cost.on_matrix_units) for cost in costs], bool)
    size = np.array([[cost.flops or 0, cost.bytes or 0] for cost in costs], np.float64).reshape(-1, 2)
    inner, outer = rows, costed_ancestor[rows]
    wrappers = [np.empty(0, np.int32)]
    # In each round `outer` is the next op with a cost around each of `inner`, which stays the innermost one.
    while (has_outer := outer >= 0).any():
        inner, outer = inner[has_outer], outer[has_outer]
        inner_cost, outer_cost = cost_index[inner], cost_index[outer]
        heavy = np.isin(op_class[inner], _HEAVY_CLASSES) | on_matrix_units[inner_cost]
        does_half = (2 * size[inner_cost] >= size[outer_cost]).all(axis=1)
        does_work = np.where(
            is_library[outer], does_half, computes[inner_cost] & ~np.isin(op_class[outer], _HEAVY_CLASSES)
        )
        wrappers.append(outer[heavy | does_work])
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
    is_unknown = (value < 0) | (value > MAX_COST // count[part_and_key])
    unknown_cells = np.zeros(total.shape, bool)
    unknown_cells[tuple(axis[is_unknown] for axis in part_and_key)] = True
    unknown_cells[:, np.setdiff1d(np.arange(key_count), classified.key)] = True
    return np.where(unknown_cells, -1, total)
