"""Details of the timeline's slices: what the page shows of a slice that is selected.

A detail is a column of integers with one value for each slice of a lane; 0 is unknown, and every other value is one
more than the quantity. Columns of a lane of device work:

- `stack`: index into `StackTable.nodes` of the innermost span that was open on the host when the work was launched.
- `shape`: index into `ShapeTable.texts` of the shapes and types of the operands of the op that launched it.
- `flops`, `bytes`: of the work.
- `least`: ns that the device needs at least for the op that launched the work, by its roofline.
- `hidden`: ns during which another account owned the time.
- `launch`: ns from the start of the call that launched the work to the start of the work; `thread`: that of the call.
- `phase`: index into words.PHASES.
- `collective`: number of the collective, the same on all of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard import words
from trainyard.events import I64, HostSpans, OperandShape
from trainyard.trace.align.matching import meetings
from trainyard.trace.align.survey import survey
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.flops.op_costs import Formulas
from trainyard.trace.flops.operands import OpArguments
from trainyard.trace.flops.roofline import least_times

DETAILS = ("stack", "shape", "flops", "bytes", "least", "hidden", "launch", "thread", "phase", "collective")
_MOST_SHAPE_CHARACTERS = 300


class StackTable:
    """The stacks of spans of all ranks as a tree. `nodes`: (node of the enclosing span, -1 for none; index into `names`
    of the span's name) of each node."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int]] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._names: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        return list(self._names)

    def of_rows(self, host: HostSpans, names: Sequence[str], depth: I64) -> I64:
        """The node of each host row. `names`: texts of `host.name`; `depth`: number of spans around each row."""
        number_of_name = np.array([self._names.setdefault(name, len(self._names)) for name in names], np.int64)
        node = np.full(len(host), -1, np.int64)
        for level in range(int(depth.max(initial=-1)) + 1):
            at_level = np.flatnonzero(depth == level)
            above = node[host.parent[at_level]] if level else np.full(len(at_level), -1, np.int64)
            # A pair of the enclosing node and the name is packed into one number.
            pairs, inverse = np.unique((above + 1) * len(names) + host.name[at_level], return_inverse=True)
            above, name = np.divmod(pairs, max(1, len(names)))
            numbers = [self._number(*pair) for pair in zip((above - 1).tolist(), number_of_name[name].tolist())]
            node[at_level] = np.array(numbers, np.int64)[inverse]
        return node

    def _number(self, above: int, name: int) -> int:
        number = self._nodes.setdefault((above, name), len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append((above, name))
        return number


class ShapeTable:
    """The shapes of operands of all ranks as text. `texts`: in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def number(self, shape: OperandShape) -> int:
        """The number of the text of a shape; -1 if it has no tensors."""
        text = OpArguments(shape).text()
        if len(text) > _MOST_SHAPE_CHARACTERS:
            text = f"{text[: _MOST_SHAPE_CHARACTERS - 1]}…"
        return self._numbers.setdefault(text, len(self._numbers)) if text else -1


def interval_details(rank: RankTrace, node_of_row: I64, shapes: ShapeTable, formulas: Formulas) -> dict[str, I64]:
    """The details of each interval of `rank.classified` but its collective.

    `node_of_row`: the stack of each host row; `formulas`: those that gave FLOPs and bytes.
    """
    classified, events = rank.classified, rank.events
    host, launcher = events.host, classified.launcher.astype(np.int64)
    launched = launcher >= 0
    # Row -1 is the last element, which is replaced if nothing launched the interval.
    op = events.work.op.astype(np.int64) if len(events.work) else launcher
    op_shape = np.where(op >= 0, _with_none(host.shape)[op], -1)
    used = np.unique(op_shape[op_shape >= 0])
    number_of_shape = np.full(len(events.shapes) + 1, -1)
    number_of_shape[used] = [shapes.number(events.shapes[shape]) for shape in used.tolist()]
    since_launch = np.where(launched, classified.start - _with_none(host.start)[launcher], -1)
    phases = np.array([phase for _, phase in rank.keys.pairs], np.int64)
    return {
        "stack": np.where(launched, _with_none(node_of_row)[launcher], -1),
        "shape": number_of_shape[op_shape],
        "flops": rank.flops,
        "bytes": rank.bytes,
        "least": least_times(rank, formulas),
        "hidden": np.maximum(-1, classified.stop - classified.start - rank.owned),
        "launch": np.maximum(-1, since_launch) if len(events.work) else np.full(len(launcher), -1),
        "thread": np.where(launched, _with_none(host.thread)[launcher], -1),
        "phase": phases[classified.key],
    }


def _with_none(column: np.ndarray) -> I64:
    """A column with one more element, -1, that the index -1 selects."""
    return np.append(column.astype(np.int64), -1)


def number_collectives(ranks: Sequence[RankTrace]) -> list[I64]:
    """For each rank, the number of the collective of each interval, the same on all of its ranks; -1 for intervals that
    are not in a collective, and for collectives with a member that is not among `ranks`."""
    surveys = [survey(rank.events, rank.classified, rank.keys) for rank in ranks]
    met = meetings(surveys, tuple(name for name in words.COLLECTIVES if name != "send_recv"))
    columns: list[I64] = []
    for rank_index, rank in enumerate(ranks):
        own = met.rank_index == rank_index
        column = np.full(len(rank.classified.start), -1, np.int64)
        column[surveys[rank_index].row[met.entry[own]]] = met.meeting[own]
        columns.append(column)
    return columns
