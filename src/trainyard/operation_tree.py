"""The operation tree of a step: phase -> modules and annotations -> host ops -> kernels and idle time, with exposed ns.

`trace/operations/` builds it from booked traces, `compare/operations/` matches two of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from trainyard.events import I64

STEP, PHASE, MODULE, OP, KERNEL, IDLE = range(6)
"""Kinds of nodes. MODULE: a module or an annotation of the program; KERNEL: a kernel, copy or collective; IDLE: an
account of waits or idle time."""
KIND_NAMES = ("step", "phase", "module", "op", "kernel", "idle")


class OperationNode(msgspec.Struct, frozen=True):
    """A node with calls of equal path added up. `parent`: its row in `OperationTree.nodes`, -1 for the root; `own_ns`:
    exposed ns that the ledger books to the node itself, without its children; `calls`: number per step and rank;
    `shapes`: the operand shapes of an op as text, empty if not recorded."""

    label: str
    kind: int
    parent: int
    own_ns: int
    calls: float
    shapes: frozenset[str] = frozenset()


class OperationTree(msgspec.Struct, frozen=True):
    """The mean step over full steps and ranks. `nodes`: row 0 is the step, and parents precede their children; siblings
    differ in label or kind. The `own_ns` of all nodes sum to the wall time of the mean ledger."""

    nodes: tuple[OperationNode, ...]

    @property
    def wall_ns(self) -> int:
        return sum(node.own_ns for node in self.nodes)

    def children(self) -> list[list[int]]:
        """The rows of each node's children, by row."""
        children: list[list[int]] = [[] for _ in self.nodes]
        for row, node in enumerate(self.nodes):
            if node.parent >= 0:
                children[node.parent].append(row)
        return children

    def total_ns(self) -> I64:
        """ns of each node with its subtree, by row."""
        total = np.array([node.own_ns for node in self.nodes], np.int64)
        for row in range(len(self.nodes) - 1, 0, -1):
            total[self.nodes[row].parent] += total[row]
        return total

    def path(self, row: int) -> tuple[str, ...]:
        """The labels from the phase down to a node; empty for the root."""
        return tuple(reversed([self.nodes[ancestor].label for ancestor in self._upwards(row)]))

    def _upwards(self, row: int) -> Iterator[int]:
        """The row and its ancestors, without the root."""
        while row > 0:
            yield row
            row = self.nodes[row].parent
