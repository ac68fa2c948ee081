"""Two matched operation trees as one: each node with its time before and after.

Nodes of both sides and added nodes are arranged as after; a moved node counts at its new parent on both sides. Removed
nodes stay with their parent before, and operations that were fused or split get a common parent.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from trainyard.compare.operations.match_trees import Matches, MatchKind
from trainyard.events import I64
from trainyard.operation_tree import IDLE, OperationNode, OperationTree


class JoinedNode(msgspec.Struct, frozen=True):
    """`kind`: that of the operation, as `OperationNode.kind`; `match`: how it was matched. `before`, `after`: rows in
    the two trees, -1 for none; of a group of fused or split operations both are -1, and
    the operations are its children. `parent`: its row in `JoinedTree.nodes`, -1 for the root; `label`: the one after,
    if there is one."""

    label: str
    kind: int
    match: MatchKind
    parent: int
    before: int = -1
    after: int = -1


class JoinedTree(NamedTuple):
    """k nodes, parents first. `own_ns`: [2, k] exposed ns of each node without its children, before and after; each
    side's sum is its step."""

    nodes: tuple[JoinedNode, ...]
    own_ns: I64


def join_trees(before: OperationTree, after: OperationTree, matches: Matches) -> JoinedTree:
    """Joins two matched trees."""
    before_of = {b: a for a, b in matches.pairs.items()}
    groups_of_before = {row: index for index, group in enumerate(matches.groups) for row in group.before}
    groups_of_after = {row: index for index, group in enumerate(matches.groups) for row in group.after}
    nodes: list[JoinedNode] = []
    own_ns: list[tuple[int, ...]] = []
    joined_after: dict[int, int] = {}  # row after -> joined row
    joined_before: dict[int, int] = {}  # row before -> joined row
    joined_groups: dict[int, int] = {}  # index of a group -> joined row

    def add(node: JoinedNode) -> int:
        """Appends a node and its time on both sides; returns its joined row."""
        nodes.append(node)
        sides = ((before, node.before), (after, node.after))
        own_ns.append(tuple(tree.nodes[row].own_ns if row >= 0 else 0 for tree, row in sides))
        return len(nodes) - 1

    def group_row(index: int) -> int:
        """The joined row of the node under which the operations of the fused or split group `index` are placed;
        appended at its first use, below the matched parent `group.parent`."""
        if index not in joined_groups:
            group = matches.groups[index]
            label = " + ".join(sorted({before.nodes[row].label for row in group.before})) + " → "
            label += " + ".join(sorted({after.nodes[row].label for row in group.after}))
            kind = after.nodes[group.after[0]].kind
            joined_groups[index] = add(
                JoinedNode(label=label, kind=kind, match=group.match, parent=joined_after[group.parent])
            )
        return joined_groups[index]

    for row, node in enumerate(after.nodes):
        parent = joined_after[node.parent] if row else -1
        if row in groups_of_after:
            parent = group_row(groups_of_after[row])
        match = matches.kinds[before_of[row]] if row in before_of else _unmatched(node, "added")
        joined_after[row] = add(
            JoinedNode(
                label=node.label, kind=node.kind, match=match, parent=parent, before=before_of.get(row, -1), after=row
            )
        )
        if row in before_of:
            joined_before[before_of[row]] = joined_after[row]
    for row, node in enumerate(before.nodes):
        if row not in joined_before:
            group = groups_of_before.get(row)
            parent = joined_before[node.parent] if group is None else group_row(group)
            match = _unmatched(node, "removed")
            joined_before[row] = add(
                JoinedNode(label=node.label, kind=node.kind, match=match, parent=parent, before=row)
            )
    return JoinedTree(tuple(nodes), np.array(own_ns, np.int64).T)


def _unmatched(node: OperationNode, match: MatchKind) -> MatchKind:
    """The match of a node of one side: idle time is a state of the device, so that it is neither added nor removed."""
    return "same" if node.kind == IDLE else match
