"""The path of each host span: the modules, annotations and ops around it, with equal paths merged.

A host row is an index into the columns of `HostSpans`. A path is a chain of nodes, each of which has a parent, a label
and a kind; rows with equal paths have the same node. Python frames that are not modules, driver calls and step marks
are not part of a path. An op of the backward pass follows the modules of the forward op with its sequence number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard import words
from trainyard.events import I8, I32, I64, NOTE, OP, PYTHON, Events
from trainyard.operation_tree import MODULE
from trainyard.operation_tree import OP as OP_NODE
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.step_marks import INFERRED_MARK, STEP_MARK
from trainyard.trace.classify.context import Context
from trainyard.trace.classify.passes import ENGINE_PREFIX
from trainyard.trace.readers.gather import OWN_RANGES
from trainyard.trace.readers.nesting import nearest_ancestor

_MAX_DEPTH = 48
"""Nodes of a path; deeper spans belong to their ancestor at this depth."""
_FORWARD, _BACKWARD = (list(words.PHASES).index(phase) for phase in ("forward", "backward"))
_NUMBER = re.compile(r"\d+")
_MIN_NUMBERED = 3
"""Annotations that differ in their numbers only, from which they may be one annotation with the step's number."""
_NO_PATH_PREFIXES = (STEP_MARK, INFERRED_MARK, *OWN_RANGES, "gloo:")


class SpanPaths(NamedTuple):
    """`node`: of each of m host rows, -1 for none; `opens`: whether the row is a call of its node, rather than inside
    it. Per node: `parent` (a node with a lower number, -1 for none), `label` (an index into `labels`), `kind` (MODULE
    or OP of `operation_tree`)."""

    node: I32
    opens: NDArray[np.bool_]
    parent: I32
    label: I32
    kind: I8
    labels: tuple[str, ...]


def find_span_paths(events: Events, context: Context) -> SpanPaths:
    """Finds the path of each host row. `context`: the module and phase of each row."""
    host = events.host
    labels, label_of_name = _label_names(events)
    label = label_of_name[host.name]
    is_op = host.what == OP
    in_path = np.array([not name.startswith((events.mark, *_NO_PATH_PREFIXES)) for name in events.names], bool)
    is_module = (host.what == PYTHON) & (context.module == host.name)
    opens = is_op | (((host.what == NOTE) | is_module) & in_path[host.name])
    around = nearest_ancestor(opens, host.parent)
    # An op that calls an op of the same name (a tensor subclass, an engine node around its function) is one call.
    is_repeated = opens & is_op & (around >= 0) & is_op[around] & (label[around] == label)
    opens &= ~is_repeated
    around = nearest_ancestor(opens, host.parent)
    around = _follow_forward_modules(events, context, opens, around)
    depth = _measure_depths(around)
    if (depth > _MAX_DEPTH).any():
        opens &= depth <= _MAX_DEPTH
        around = nearest_ancestor(opens, around)
    node, parent, node_label, kind = _number_paths(opens, around, depth, label, is_op)
    node[~opens] = np.where(around[~opens] >= 0, node[around[~opens]], -1)
    return SpanPaths(node=node, opens=opens, parent=parent, label=node_label, kind=kind, labels=labels)


def _label_names(events: Events) -> tuple[tuple[str, ...], I32]:
    """(distinct labels, the label number of each name): names without the profiler's prefixes, and annotations that
    contain the number of the step without it."""
    numbered = _find_step_numbered_notes(events)
    numbers: dict[str, int] = {}
    label_of_name = np.empty(len(events.names), np.int32)
    for index, name in enumerate(events.names):
        text = name.removeprefix(ENGINE_PREFIX).removeprefix(MODULE_PREFIX).strip(": ") or name
        if index in numbered:
            text = _NUMBER.sub("#", text)
        label_of_name[index] = numbers.setdefault(text, len(numbers))
    return tuple(numbers), label_of_name


def _find_step_numbered_notes(events: Events) -> set[int]:
    """The name numbers of annotations that contain the number of a step, such as `batch 17`.

    These are three names or more that differ in their numbers only, each of which occurs in a single step.
    """
    host = events.host
    rows = np.flatnonzero(host.what == NOTE)
    if len(events.marks) < _MIN_NUMBERED or not len(rows):
        return set()
    step = np.searchsorted(np.array([mark.start for mark in events.marks], np.int64), host.start[rows], "right")
    first, last = np.full(len(events.names), len(events.marks) + 1), np.full(len(events.names), -1)
    np.minimum.at(first, host.name[rows], step)
    np.maximum.at(last, host.name[rows], step)
    by_text: dict[str, list[int]] = {}
    for name in np.unique(host.name[rows]).tolist():
        by_text.setdefault(_NUMBER.sub("#", events.names[name]), []).append(name)
    numbered: set[int] = set()
    for similar in by_text.values():
        steps = first[similar]
        if len(similar) >= _MIN_NUMBERED and (steps == last[similar]).all() and len(np.unique(steps)) == len(similar):
            numbered.update(similar)
    return numbered


def _follow_forward_modules(events: Events, context: Context, opens: NDArray[np.bool_], around: I32) -> I32:
    """`around` with the outermost ops of the backward pass put under the module of their forward op.

    `opens`: the rows that are nodes; `around`: the innermost of these around each row, -1 for none.
    """
    host = events.host
    is_op = host.what == OP
    is_forward = is_op & (host.seq >= 0) & (host.backward == 0) & (context.phase == _FORWARD)
    is_outermost = opens & is_op & (host.seq >= 0) & (host.backward > 0) & (context.phase == _BACKWARD)
    is_outermost &= (around < 0) | ~is_op[around]
    forward, rows = np.flatnonzero(is_forward)[::-1], np.flatnonzero(is_outermost)
    if not len(forward) or not len(rows):
        return around
    # The last forward op with a number is the one that autograd recorded: np.unique returns the first occurrence.
    seq, first = np.unique(host.seq[forward], return_index=True)
    position = np.minimum(np.searchsorted(seq, host.seq[rows]), len(seq) - 1)
    module = nearest_ancestor(opens & ~is_op, host.parent)[forward[first][position]]
    is_known = (seq[position] == host.seq[rows]) & (module >= 0) & (module < rows)
    around = around.copy()
    around[rows[is_known]] = module[is_known]
    return around


def _measure_depths(around: I32) -> I64:
    """The number of nodes around each host row, at most `_MAX_DEPTH` + 1. `around`: for each host row, the row of the
    innermost node around it, -1 for none."""
    depth = np.zeros(len(around), np.int64)
    rows = np.flatnonzero(around >= 0)
    ancestor = around[rows]
    while len(rows) and depth[rows[0]] <= _MAX_DEPTH:
        depth[rows] += 1
        ancestor = around[ancestor]
        rows, ancestor = rows[ancestor >= 0], ancestor[ancestor >= 0]
    return depth


def _number_paths(
    opens: NDArray[np.bool_], around: I32, depth: I64, label: I32, is_op: NDArray[np.bool_]
) -> tuple[I32, I32, I32, I8]:
    """Numbers the paths of the rows in `opens`, level by level: (node of each row, -1 for others; parent, label and
    kind of each node)."""
    node = np.full(len(opens), -1, np.int32)
    parents, node_labels, kinds = [np.empty(0, np.int32)], [np.empty(0, np.int32)], [np.empty(0, np.int8)]
    base = 2 * (int(label.max(initial=0)) + 1)
    count = 0
    rows = np.flatnonzero(opens)
    rows = rows[np.argsort(depth[rows], kind="stable")]
    for level in np.split(rows, np.flatnonzero(np.diff(depth[rows])) + 1):
        # Row -1 of `node` belongs to another span, so that rows without an ancestor need the default.
        above = np.where(around[level] >= 0, node[around[level]], -1).astype(np.int64)
        packed, number = np.unique((above + 1) * base + 2 * label[level] + is_op[level], return_inverse=True)
        node[level] = count + number
        parents.append((packed // base - 1).astype(np.int32))
        node_labels.append((packed % base // 2).astype(np.int32))
        kinds.append(np.where(packed % 2 == 1, OP_NODE, MODULE).astype(np.int8))
        count += len(packed)
    return node, np.concatenate(parents), np.concatenate(node_labels), np.concatenate(kinds)
