"""Matches the nodes of two operation trees: same path, renamed, moved, fused and split; the rest is added or removed.

Children of matched nodes with the same label and kind match. Of the other siblings, the most similar ones are taken for
the same node under another name. Subtrees that are left on both sides, below different parents, were moved if their
contents agree. Siblings that are left become one fused operation if fewer operations with fitting numbers of calls are
left on the other side.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence, Set
from itertools import islice
from typing import Literal, NamedTuple

from trainyard.compare.operations.similarity import Similarity, Subtrees, strip_instance
from trainyard.operation_tree import IDLE, KERNEL, MODULE, OP, OperationTree

MatchKind = Literal["same", "renamed", "moved", "fused", "split", "added", "removed"]
_MIN_RENAMED = 0.5
"""Least overall similarity of renamed siblings."""
_MIN_MOVED = 0.75
"""Least similarity of contents of moved subtrees."""
_MIN_CALLS_OF_MOVED, _MIN_SHAPES = 0.9, 0.5
"""Least similarity of their calls and operand shapes."""
_MAX_SIBLINGS = 30
"""Unmatched siblings of each side that are compared pairwise: those with the largest subtrees."""
_MAX_COMPARISONS = 200_000
"""Pairs of siblings that are compared in all; a limit for trees that have nothing in common."""
_MAX_FUSED = 12
"""Operations that become one; more of them were replaced by something else."""
_COMPILED = ("CompiledFunction", "Torch-Compiled Region", "## Call CompiledFxGraph")
"""How the names of compiled functions begin."""
_MAX_CANDIDATES = 50
"""Subtrees that are compared with one that may have been moved."""


class Group(NamedTuple):
    """Operations of one parent that became others: `fused` into fewer or `split` into more. Rows in each tree."""

    match: MatchKind
    before: tuple[int, ...]
    after: tuple[int, ...]
    parent: int
    """Row of the matched parent in the tree after."""


class Matches(NamedTuple):
    """`pairs`: row before -> row after; `kinds`: the kind of match of each pair, by the row before; `groups`: of
    unmatched rows. Rows in neither are removed (before) or added (after)."""

    pairs: dict[int, int]
    kinds: dict[int, MatchKind]
    groups: tuple[Group, ...]


class _MovableLabel(NamedTuple):
    """The properties of a node that do not change if it is moved: the name of its phase, its kind and its label."""

    phase: str
    kind: int
    label: str

    def any_instance(self) -> _MovableLabel:
        """The same without the number of the instance."""
        return self._replace(label=strip_instance(self.label))


def match_trees(before: OperationTree, after: OperationTree) -> Matches:
    """Matches two operation trees by structure. The roots match; a node matches only nodes of its phase's name."""
    return _Matcher(before, after).match()


class _Matcher:
    """The state of a matching: pairs so far, in both directions."""

    def __init__(self, before: OperationTree, after: OperationTree) -> None:
        self.a, self.b = Subtrees(before), Subtrees(after)
        self.similarity = Similarity(self.a, self.b)
        self.pairs: dict[int, int] = {}
        self.kinds: dict[int, MatchKind] = {}
        self.matched_after: set[int] = set()
        self.comparison_count = 0

    def match(self) -> Matches:
        """Runs all passes from the roots."""
        self._match_subtrees(0, 0, "same")
        self._match_moved()
        return Matches(self.pairs, self.kinds, tuple(self._find_groups()))

    def _match_subtrees(self, a: int, b: int, kind: MatchKind) -> None:
        """Matches two nodes, then their children by label and the remaining children by similarity, downwards."""
        pending: list[tuple[int, int, MatchKind]] = [(a, b, kind)]
        while pending:
            a, b, kind = pending.pop()
            self.pairs[a], self.kinds[a] = b, kind
            self.matched_after.add(b)
            in_b = {(self.b.nodes[row].label, self.b.nodes[row].kind): row for row in self._left_after(b)}
            for row in self._left_before(a):
                node = self.a.nodes[row]
                if (other := in_b.get((node.label, node.kind))) is not None:
                    pending.append((row, other, "same"))
                    self.pairs[row] = other
                    self.matched_after.add(other)
            pending.extend((row, other, "renamed") for row, other in self._renamed_children(a, b))

    def _renamed_children(self, a: int, b: int) -> list[tuple[int, int]]:
        """The pairs of unmatched children of two matched nodes that are one node under two names, and marks them as
        matched. The most similar pairs come first; a kernel that is the only one left on both sides has another name,
        too."""
        left, right = (
            self._largest(self.a, self._left_before(a), a == 0),
            self._largest(self.b, self._left_after(b), a == 0),
        )
        self.comparison_count += len(left) * len(right)
        if self.comparison_count > _MAX_COMPARISONS:
            return []
        scored = sorted(
            ((self.similarity.overall(row, other), row, other) for row in left for other in right),
            key=lambda pair: (-pair[0], pair[1], pair[2]),
        )
        kernels = [
            [row for row in rows if tree.nodes[row].kind == KERNEL] for tree, rows in ((self.a, left), (self.b, right))
        ]
        if len(kernels[0]) == len(kernels[1]) == 1 and self.similarity.calls(kernels[0][0], kernels[1][0]) == 1:
            scored.insert(0, (1.0, kernels[0][0], kernels[1][0]))
        renamed: list[tuple[int, int]] = []
        for score, row, other in scored:
            if score < _MIN_RENAMED:
                break
            if row not in self.pairs and other not in self.matched_after:
                self.pairs[row] = other
                self.matched_after.add(other)
                renamed.append((row, other))
        return renamed

    def _left_before(self, a: int) -> list[int]:
        """Unmatched children before."""
        return [row for row in self.a.children[a] if row not in self.pairs]

    def _left_after(self, b: int) -> list[int]:
        """Unmatched children after."""
        return [row for row in self.b.children[b] if row not in self.matched_after]

    def _largest(self, tree: Subtrees, rows: list[int], is_root: bool) -> list[int]:
        """The rows that can be renamed: no phases and no idle time, the largest `_MAX_SIBLINGS`."""
        rows = [] if is_root else [row for row in rows if tree.nodes[row].kind != IDLE]
        if len(rows) > _MAX_SIBLINGS:
            rows = sorted(rows, key=lambda row: -tree.contents(row).total())[:_MAX_SIBLINGS]
        return rows

    def _match_moved(self) -> None:
        """Matches subtrees that are below different parents, the largest first."""
        rows = [row for row in range(1, len(self.a.nodes)) if row not in self.pairs and self._is_movable(self.a, row)]
        others = [
            row
            for row in range(1, len(self.b.nodes))
            if row not in self.matched_after and self._is_movable(self.b, row)
        ]
        # Nodes after by their label, and by their label without the number of instance.
        candidates_of: dict[_MovableLabel, deque[int]] = defaultdict(deque)
        for other in others:
            label = self._movable_label(self.b, other)
            for key in {label, label.any_instance()}:
                candidates_of[key].append(other)
        counts: Counter[_MovableLabel] = Counter()
        for row in rows:
            label = self._movable_label(self.a, row)
            counts.update({label, label.any_instance()})
        totals = {key: len(candidates) for key, candidates in candidates_of.items()}
        for row in sorted(rows, key=lambda row: (-self.a.contents(row).total(), row)):
            label = self._movable_label(self.a, row)
            for key in (label, label.any_instance()):
                is_only = counts[key] == totals.get(key) == 1
                if row not in self.pairs and (is_only or (key == label and label.kind == MODULE)):
                    self._match_best(row, candidates_of.get(key, deque()), is_only)

    def _match_best(self, row: int, candidates: deque[int], is_only: bool) -> None:
        """Matches `row` with the best of the candidates after, if the evidence suffices. Drops matched ones."""
        while candidates and candidates[0] in self.matched_after:
            candidates.popleft()
        scored = [
            (self._score_move(row, other, is_only), -other)
            for other in islice(candidates, _MAX_CANDIDATES)
            if other not in self.matched_after
        ]
        if scored and max(scored)[0] >= _MIN_MOVED:
            self._match_subtrees(row, -max(scored)[1], "moved")

    def _is_movable(self, tree: Subtrees, row: int) -> bool:
        """Whether a node can be below another parent: a module, or an op that another op does not call."""
        kind = tree.nodes[row].kind
        return kind == MODULE or (kind == OP and tree.nodes[tree.nodes[row].parent].kind != OP)

    def _movable_label(self, tree: Subtrees, row: int) -> _MovableLabel:
        """The properties that a node keeps if it is moved."""
        node = tree.nodes[row]
        return _MovableLabel(tree.nodes[tree.phase[row]].label, node.kind, node.label)

    def _score_move(self, row: int, other: int, is_only: bool) -> float:
        """The evidence that `other` is `row` below another parent, from 0 to 1. `is_only`: no other nodes come into
        question. 0 for another number of calls or other operand shapes."""
        contents, shapes = self.similarity.contents(row, other), self.similarity.shapes(row, other)
        if self.similarity.calls(row, other) < _MIN_CALLS_OF_MOVED or (shapes is not None and shapes < _MIN_SHAPES):
            return 0.0
        if contents is None:  # nothing but the node itself: its operands have to agree, or it is the only such node
            return float(is_only if shapes is None else shapes == 1.0)
        return contents

    def _find_groups(self) -> list[Group]:
        """Fused and split operations among the unmatched children of matched nodes."""
        groups: list[Group] = []
        for a, b in self.pairs.items():
            left = [row for row in self._left_before(a) if self._is_whole(self.a, row, self.pairs.keys())]
            right = [row for row in self._left_after(b) if self._is_whole(self.b, row, self.matched_after)]
            for kinds in ((MODULE, OP), (KERNEL,)):
                old = [row for row in left if self.a.nodes[row].kind in kinds]
                new = [row for row in right if self.b.nodes[row].kind in kinds]
                if not old or not new:
                    continue
                fused = _fitting(self.a, old, min(self.b.nodes[row].calls for row in new))
                split = _fitting(self.b, new, min(self.a.nodes[row].calls for row in old))
                is_few = len(fused) <= _MAX_FUSED * len(new) or self._are_compiled(new)
                if len(new) < len(fused) and is_few and self._share_operands(fused, new):
                    groups.append(Group("fused", tuple(fused), tuple(new), b))
                elif len(old) < len(split) <= _MAX_FUSED * len(old) and self._share_operands(old, split):
                    groups.append(Group("split", tuple(old), tuple(split), b))
        return groups

    def _are_compiled(self, rows: list[int]) -> bool:
        """Whether nodes after are functions that torch.compile made from any number of operations."""
        return all(self.b.nodes[row].label.startswith(_COMPILED) for row in rows)

    def _share_operands(self, old: list[int], new: list[int]) -> bool:
        """Whether two sets of operations have operand shapes in common, or a side has none recorded."""
        shapes_before = {shape for row in old for _, shape in self.a.shapes(row)}
        shapes_after = {shape for row in new for _, shape in self.b.shapes(row)}
        return not shapes_before or not shapes_after or bool(shapes_before & shapes_after)

    def _is_whole(self, tree: Subtrees, row: int, matched: Set[int]) -> bool:
        """Whether no node of the subtree of `row` is matched, as a part of it that was moved is."""
        pending = [row]
        while pending:
            if (row := pending.pop()) in matched:
                return False
            pending.extend(tree.children[row])
        return True


def _fitting(tree: Subtrees, rows: Sequence[int], calls: float) -> list[int]:
    """The rows that may be parts of an operation with this number of calls: called as often, or a multiple of it."""
    if not calls:
        return []
    return [row for row in rows if tree.nodes[row].calls >= calls and abs(tree.nodes[row].calls / calls % 1) < 1e-6]
