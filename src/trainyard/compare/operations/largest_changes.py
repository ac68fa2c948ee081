"""The operations that explain the change of a step: the deepest nodes with most of it, and changes of structure.

The joined tree is divided into areas: each begins at a reported node, or several that differ in the numbers of their
instances only, and ends at other reported nodes below. The changes of the areas and of the rest add up to the step's.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from trainyard.compare.operations.joined_tree import JoinedTree, join_trees
from trainyard.compare.operations.match_trees import MatchKind, match_trees
from trainyard.compare.operations.similarity import strip_instance
from trainyard.events import I64
from trainyard.operation_tree import KIND_NAMES, MODULE, OP, PHASE, STEP, OperationTree

_MOST = 0.8
"""Share of its parent's change from which a node explains it."""
_MAX_EXPLAINING = 3
"""Children that may explain the change of a module together; of an op, one has to."""
_SMALL_SHARE = 0.001
"""Fraction of the step below which a change is not reported, unless the structure changed."""
_WHOLE = ("added", "removed", "fused", "split")
"""Matches whose subtrees are reported as a whole, except for parts that were moved."""
_MAX_ROWS = 200
"""Reported nodes; further ones count as the rest."""


class OperationChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of an operation. `path`: labels from the phase down; `*` is a number in which `places` nodes differ.
    `path_before`: the path before, if it was renamed or moved, else empty. `kind`: phase, module, op, kernel or idle.
    `before_ns`, `after_ns`: per step, without the operations below it that are reported too; `ns`: after - before.
    `calls_before`, `calls_after`: per step and rank. `joined_before`, `joined_after`: the number of operations that
    were fused into fewer or split into more, at each place; 0 for other matches."""

    path: tuple[str, ...]
    path_before: tuple[str, ...] = ()
    kind: str
    match: MatchKind
    places: int
    before_ns: int
    after_ns: int
    ns: int
    calls_before: float
    calls_after: float
    joined_before: int = 0
    joined_after: int = 0


class OperationChanges(msgspec.Struct, frozen=True, kw_only=True):
    """`largest`: reported operations, the largest change first. `rest_before_ns`, `rest_after_ns`, `rest_ns`: the rest
    of the step. `ns` of all operations and `rest_ns` add up to the change of the step."""

    largest: tuple[OperationChange, ...]
    rest_before_ns: int
    rest_after_ns: int
    rest_ns: int


def find_changes(before: OperationTree, after: OperationTree) -> OperationChanges:
    """Matches two operation trees and returns the operations that explain the change of the step."""
    joined = join_trees(before, after, match_trees(before, after))
    return _Selection(before, after, joined).changes()


class _Selection:
    """The selection of the nodes to report. A set of nodes is a list of joined rows.

    By joined row: `change_ns`, by how much a node with its subtree became longer; `peak_ns`, the largest absolute
    change in its subtree. `small_ns`: changes below it are small.
    """

    def __init__(self, before: OperationTree, after: OperationTree, joined: JoinedTree) -> None:
        self.before, self.after, self.nodes = before, after, joined.nodes
        self.own_ns = joined.own_ns
        self.total_ns = _sum_subtrees(joined)
        self.change_ns = (self.total_ns[1] - self.total_ns[0]).tolist()
        self.children: list[list[int]] = [[] for _ in self.nodes]
        for row, node in enumerate(self.nodes):
            if node.parent >= 0:
                self.children[node.parent].append(row)
        # The largest change in each subtree: changes that cancel each other do not show in the change of the whole.
        self.peak_ns = [abs(ns) for ns in self.change_ns]
        for row in range(len(self.nodes) - 1, 0, -1):
            parent = self.nodes[row].parent
            self.peak_ns[parent] = max(self.peak_ns[parent], self.peak_ns[row])
        self.small_ns = _SMALL_SHARE * max(self.total_ns[0][0], self.total_ns[1][0])
        self.areas: list[list[int]] = []

    def changes(self) -> OperationChanges:
        """Selects the areas and adds them up. Small changes are reported if the structure changed."""
        self._explain([0])
        self._add_structural()
        self._merge_instances()
        owner = self._owners()
        sums = np.zeros((2, len(self.areas) + 1), np.int64)
        for side in (0, 1):
            np.add.at(sums[side], owner, self.own_ns[side])
        changes = [self._describe(area, *sums[:, index].tolist()) for index, area in enumerate(self.areas)]
        changes = [change for change in changes if change.match != "same" or abs(change.ns) >= self.small_ns]
        changes.sort(key=lambda change: (-abs(change.ns), change.match == "same", change.path))
        changes = changes[:_MAX_ROWS]
        rest_before_ns = int(self.total_ns[0][0]) - sum(change.before_ns for change in changes)
        rest_after_ns = int(self.total_ns[1][0]) - sum(change.after_ns for change in changes)
        return OperationChanges(
            largest=tuple(changes),
            rest_before_ns=rest_before_ns,
            rest_after_ns=rest_after_ns,
            rest_ns=rest_after_ns - rest_before_ns,
        )

    def _merge_instances(self) -> None:
        """Joins areas of equal paths, except for numbers of instances, if they changed in the same direction."""
        joined: dict[tuple[tuple[str, ...], MatchKind, bool], list[int]] = defaultdict(list)
        for area in self.areas:
            path = tuple(map(strip_instance, self._path(area[0])))
            match = self.nodes[area[0]].match
            joined[path, match, sum(self.change_ns[row] for row in area) > 0].extend(area)
        self.areas = list(joined.values())

    def _explain(self, rows: list[int]) -> None:
        """Adds the area of `rows`, or those of the nodes below that explain most of their change."""
        pending = [rows]
        while pending:
            rows = pending.pop()
            change = sum(self.change_ns[row] for row in rows)
            kind, match = self.nodes[rows[0]].kind, self.nodes[rows[0]].match
            children = [child for row in rows for child in self.children[row]]
            explaining = [] if match in _WHOLE else self._explaining(change, kind, children)
            pending.extend(explaining)
            if not explaining and kind not in (STEP, PHASE) and abs(change) >= self.small_ns:
                self.areas.append(rows)

    def _explaining(self, change: int, kind: int, children: list[int]) -> list[list[int]]:
        """Sets of children that explain a change of their parents, empty if they do not. `change`: of all parents, in
        ns; `kind`: that of the parents; `children`: joined rows.

        A step and a phase are divided in any case. For others, these are a single child or several with the same name
        and kind of match; for a module, up to three sets in the same direction. If the children's changes cancel each
        other, all large ones.
        """
        by_name: dict[tuple[str, int, MatchKind], list[int]] = defaultdict(list)
        for row in children:
            node = self.nodes[row]
            by_name[strip_instance(node.label), node.kind, node.match].append(row)
        sets: list[list[int]] = []
        for rows in by_name.values():
            total = sum(self.change_ns[row] for row in rows)
            largest = max(rows, key=lambda row: abs(self.change_ns[row]))
            is_single_cause = abs(self.change_ns[largest]) >= _MOST * abs(total) and len(rows) > 1
            gross = sum(abs(self.change_ns[row]) for row in rows)
            if is_single_cause or gross > 2 * abs(total):
                sets.extend([row] for row in rows)
            else:
                sets.append(rows)
        sizes = [(sum(self.change_ns[row] for row in rows), rows) for rows in sets]
        sizes.sort(key=lambda item: -abs(item[0]))
        peak_ns = max((self.peak_ns[row] for row in children), default=0)
        if kind in (STEP, PHASE) or max(peak_ns, sum(abs(ns) for ns, _ in sizes) / 2) > abs(change):
            return [rows for ns, rows in sizes if max(abs(ns), *(self.peak_ns[row] for row in rows)) >= self.small_ns]
        limit = _MAX_EXPLAINING if kind == MODULE else 1
        same_way = [(ns, rows) for ns, rows in sizes if ns * change > 0][:limit]
        for count in range(1, len(same_way) + 1):
            if sum(abs(ns) for ns, _ in same_way[:count]) >= _MOST * abs(change):
                return [rows for _, rows in same_way[:count]]
        return []

    def _add_structural(self) -> None:
        """Adds the outermost modules and ops that were renamed, moved, fused, split, added or removed, unless they are
        in an area of that kind. Equal changes of several instances are one area."""
        reported = {row for area in self.areas for row in area}
        is_inside = [False] * len(self.nodes)  # inside an added, removed, fused or split node
        by_path: dict[tuple[tuple[str, ...], MatchKind], list[int]] = defaultdict(list)
        for row, node in enumerate(self.nodes):
            parent = node.parent
            is_inside[row] = parent >= 0 and (is_inside[parent] or self.nodes[parent].match in _WHOLE)
            is_structural = node.match != "same" and node.kind in (MODULE, OP, PHASE)
            # Which ops an op calls is of interest only if it takes time.
            is_structural &= self.nodes[parent].kind != OP or abs(self.change_ns[row]) >= self.small_ns
            if is_structural and row not in reported and (not is_inside[row] or node.match == "moved"):
                by_path[tuple(map(strip_instance, self._path(row))), node.match].append(row)
        self.areas.extend(by_path.values())

    def _owners(self) -> list[int]:
        """The index of the area that each joined row is in; the last index for none."""
        area_of = {row: index for index, area in enumerate(self.areas) for row in area}
        owner: list[int] = []
        for row, node in enumerate(self.nodes):
            default = owner[node.parent] if node.parent >= 0 else len(self.areas)
            owner.append(area_of.get(row, default))
        return owner

    def _path(self, row: int) -> tuple[str, ...]:
        """The labels from the phase down to a joined row."""
        labels: list[str] = []
        while row > 0:
            labels.append(self.nodes[row].label)
            row = self.nodes[row].parent
        return tuple(reversed(labels))

    def _describe(self, area: list[int], before_ns: int, after_ns: int) -> OperationChange:
        """The row of an area, whose sums are given."""
        first = self.nodes[area[0]]
        is_group = first.match in ("fused", "split")
        rows = [child for row in area for child in self.children[row]] if is_group else area
        befores = [self.nodes[row].before for row in rows if self.nodes[row].before >= 0]
        afters = [self.nodes[row].after for row in rows if self.nodes[row].after >= 0]
        former = first.match in ("renamed", "moved")
        return OperationChange(
            path=_common_path([self._path(row) for row in area]),
            path_before=_common_path([self.before.path(row) for row in befores]) if former else (),
            kind=KIND_NAMES[first.kind],
            match=first.match,
            places=len(area),
            before_ns=before_ns,
            after_ns=after_ns,
            ns=after_ns - before_ns,
            calls_before=sum(self.before.nodes[row].calls for row in befores),
            calls_after=sum(self.after.nodes[row].calls for row in afters),
            joined_before=len(befores) // len(area) if is_group else 0,
            joined_after=len(afters) // len(area) if is_group else 0,
        )


def _sum_subtrees(joined: JoinedTree) -> I64:
    """[2, k]: ns of each joined node with its subtree, before and after."""
    totals = joined.own_ns.copy()
    for row in range(len(joined.nodes) - 1, 0, -1):
        totals[:, joined.nodes[row].parent] += totals[:, row]
    return totals


def _common_path(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """One path for several that differ in numbers of instances only: `*` stands for numbers that differ."""
    return tuple(
        labels[0] if len(set(labels)) == 1 else f"{strip_instance(labels[0])}*" for labels in zip(*paths, strict=False)
    )
