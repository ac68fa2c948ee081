"""Similarity of two subtrees of operation trees: contents, operand shapes, calls and names, without idle time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Set
from functools import lru_cache

from trainyard.operation_tree import IDLE, KERNEL, MODULE, OP, OperationTree

_INSTANCE = re.compile(r"\d+$")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+\w*")
_MIN_SIMILAR_NAMES = 0.7
"""Share of the words of two labels in common from which other contents do not matter."""
_Contents = Counter[tuple[str, ...]]
"""Path from a node down to a descendant, without numbers of instances -> calls of the descendant."""


@lru_cache(maxsize=65536)
def strip_instance(label: str) -> str:
    """The label without the number at its end: `Linear_3` -> `Linear_`, `layers.0` -> `layers.`."""
    return _INSTANCE.sub("", label)


@lru_cache(maxsize=4096)
def _words(label: str) -> frozenset[str]:
    """The words of a label: `LayerNorm_3` -> Layer, Norm, 3."""
    return frozenset(_WORD.findall(label))


class Subtrees:
    """The contents of the subtrees of one tree, computed on demand."""

    def __init__(self, tree: OperationTree) -> None:
        self.tree = tree
        self.nodes = tree.nodes
        self.children = tree.children()
        self.phase = _phases(tree)
        self._contents: dict[int, _Contents] = {}
        self._shapes: dict[int, frozenset[tuple[str, ...]]] = {}

    def contents(self, row: int) -> _Contents:
        """The contents of the subtree of `row`, without the node itself and without idle time."""
        if row not in self._contents:
            contents: _Contents = Counter()
            pending: list[tuple[int, tuple[str, ...]]] = [(row, ())]
            while pending:
                above, path = pending.pop()
                for child in self.children[above]:
                    node = self.nodes[child]
                    if node.kind != IDLE:
                        below = (*path, strip_instance(node.label))
                        contents[below] += max(1, round(node.calls))
                        pending.append((child, below))
            self._contents[row] = contents
        return self._contents[row]

    def shapes(self, row: int) -> frozenset[tuple[str, ...]]:
        """The operand shapes of the ops of the subtree of `row`, each as (label of the op, shape)."""
        if row not in self._shapes:
            own = {("", shape) for shape in self.nodes[row].shapes}
            pending = list(self.children[row])
            while pending:
                node = self.nodes[child := pending.pop()]
                own.update((strip_instance(node.label), shape) for shape in node.shapes)
                pending.extend(self.children[child])
            self._shapes[row] = frozenset(own)
        return self._shapes[row]


class Similarity:
    """Similarities of nodes of `before` and nodes of `after`, from 0 to 1."""

    def __init__(self, before: Subtrees, after: Subtrees) -> None:
        self.before, self.after = before, after

    def contents(self, a: int, b: int) -> float | None:
        """Similarity of the contents of two subtrees; None if neither has any."""
        of_a, of_b = self.before.contents(a), self.after.contents(b)
        if not of_a and not of_b:
            return None
        shared = sum(min(count, of_b[path]) for path, count in of_a.items() if path in of_b)
        return shared / (sum(of_a.values()) + sum(of_b.values()) - shared)

    def shapes(self, a: int, b: int) -> float | None:
        """Similarity of the operand shapes in two subtrees; None if a side has none."""
        of_a, of_b = self.before.shapes(a), self.after.shapes(b)
        return _overlap(of_a, of_b) if of_a and of_b else None

    def calls(self, a: int, b: int) -> float:
        """The smaller number of calls over the larger; 1 if neither has a recorded call."""
        counts = self.before.nodes[a].calls, self.after.nodes[b].calls
        return min(counts) / max(counts) if max(counts) else 1.0

    def overall(self, a: int, b: int) -> float:
        """The evidence that two siblings with different labels are one node that was renamed. 0 for different kinds."""
        node, other = self.before.nodes[a], self.after.nodes[b]
        if node.kind != other.kind or node.kind not in (MODULE, OP, KERNEL):
            return 0.0
        names = _overlap(_words(node.label), _words(other.label))
        contents, shapes, calls = self.contents(a, b), self.shapes(a, b), self.calls(a, b)
        if names >= _MIN_SIMILAR_NAMES and contents is not None:  # another implementation of the same name
            contents = max(contents, names)
        if contents is None:
            return 0.55 * names + 0.25 * (names if shapes is None else shapes) + 0.2 * calls
        return 0.6 * contents + 0.15 * (contents if shapes is None else shapes) + 0.15 * calls + 0.1 * names


def _overlap(a: Set[object], b: Set[object]) -> float:
    """Jaccard similarity of two sets; 1 if both are empty."""
    return len(a & b) / len(a | b) if a or b else 1.0


def _phases(tree: OperationTree) -> list[int]:
    """The row of the phase that each node is in, by row; 0 for the root."""
    phases = [0]
    for row, node in enumerate(tree.nodes[1:], 1):
        phases.append(row if node.parent == 0 else phases[node.parent])
    return phases
