"""The lanes of one rank in the timeline: its ledger, its streams, and the spans of its host threads.

The ledger lane shows the account that owns each instant of the rank's window, so that the sum of its slices in a range
is the ledger of that range. A stream's lane has its work and, in it, waits for other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from trainyard import words
from trainyard.events import I64
from trainyard.ledger import Account
from trainyard.report.view.host_lanes import HOST_LOOKS, depths, host_lanes
from trainyard.report.view.natural_order import natural_key
from trainyard.report.view.rank_summary import LEDGER_LABEL
from trainyard.report.view.slice_details import ShapeTable, StackTable, interval_details
from trainyard.report.view.view import Lane, Legend
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.summarise_rank import group_short, owned_stretches
from trainyard.trace.flops.op_costs import Formulas


class LaneRows(NamedTuple):
    """A lane before short slices are merged. `begin`, `end` in ns from the origin, disjoint and sorted; `name`, `look`:
    numbers in the tables of the `LaneBuilder`; `details`: see slice_details.py, empty if the lane has none."""

    rank: int
    label: str
    kind: Literal["ledger", "device", "host"]
    depth: int
    begin: I64
    end: I64
    name: I64
    look: I64
    details: dict[str, I64]

    def count(self, shortest_ns: int) -> int:
        """The number of slices that `merge_short` leaves."""
        return len(group_short(self.begin, self.end, shortest_ns))

    def merge_short(self, shortest_ns: int) -> Lane:
        """The lane, in which slices and gaps shorter than `shortest_ns` are merged into slices with the name, look and
        details of the longest slice in them."""
        first = group_short(self.begin, self.end, shortest_ns)
        last = np.append(first[1:], len(self.begin))[: len(first)] - 1
        longest = _longest(self.end - self.begin, first)
        return Lane(
            rank=self.rank,
            label=self.label,
            kind=self.kind,
            depth=self.depth,
            starts=self.begin[first],
            lengths=self.end[last] - self.begin[first],
            name=self.name[longest],
            look=self.look[longest],
            details={name: column[longest] + 1 for name, column in self.details.items()},
        )


class LaneBuilder:
    """Builds lanes of several ranks that share tables of names, looks, stacks and shapes."""

    def __init__(self, formulas: Formulas) -> None:
        """`formulas`: those that gave FLOPs and bytes."""
        self._formulas = formulas
        self.stacks, self.shapes = StackTable(), ShapeTable()
        self._names: dict[str, int] = {}
        self._looks: dict[str, int] = {}
        self.legend: list[Legend] = []

    @property
    def names(self) -> list[str]:
        """The names of slices."""
        return list(self._names)

    def name_number(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def look_number(self, account: Account) -> int:
        legend = Legend(label=account.label, colour=account.colour, means=account.means, idle=_idle(account))
        return self._look(legend)

    def _look(self, legend: Legend) -> int:
        number = self._looks.setdefault(legend.label, len(self._looks))
        if number == len(self.legend):
            self.legend.append(legend)
        return number

    def lanes(self, rank: RankTrace, origin: int, collectives: I64, with_details: bool) -> list[LaneRows]:
        """The lanes of a rank, with times in ns from `origin`.

        `collectives`: number of the collective of each interval, -1 for none. `with_details`: whether slices have all
        details and the rank has lanes of its host threads.
        """
        if not with_details:
            return [self._ledger(rank, origin), *self._streams(rank, origin, {"collective": collectives})]
        depth = depths(rank.events.host.parent)
        node_of_row = self.stacks.of_rows(rank.events.host, rank.events.names, depth)
        details = interval_details(rank, node_of_row, self.shapes, self._formulas)
        return [
            self._ledger(rank, origin),
            *self._streams(rank, origin, {**details, "collective": collectives}),
            *self._host(rank, origin, depth, node_of_row),
        ]

    def _ledger(self, rank: RankTrace, origin: int) -> LaneRows:
        """The lane of the accounts that own the time."""
        stretches = owned_stretches(rank)
        look = np.array([self.look_number(account) for account in stretches.accounts], np.int64)
        name = np.array([self.name_number(account.label) for account in stretches.accounts], np.int64)
        return LaneRows(
            rank=rank.events.rank,
            label=LEDGER_LABEL,
            kind="ledger",
            depth=0,
            begin=stretches.bounds[:-1] - origin,
            end=stretches.bounds[1:] - origin,
            name=name[stretches.account],
            look=look[stretches.account],
            details={},
        )

    def _streams(self, rank: RankTrace, origin: int, details: dict[str, I64]) -> list[LaneRows]:
        """The lanes of a rank's streams. `details`: of each interval."""
        classified, waits = rank.classified, rank.waits
        lane_of, labels = lane_numbers(rank)
        window = (rank.parts[0].start, rank.parts[-1].stop)
        # Rows: the intervals of work, then the waits; `lane_of`, `key`, `name` and the details get the same rows.
        start = np.clip(np.concatenate([classified.start, waits.start]), *window) - origin
        stop = np.clip(np.concatenate([classified.stop, waits.stop]), *window) - origin
        key = np.concatenate([classified.key, waits.key])
        name = np.concatenate([classified.name, np.full(len(waits.start), -1)])
        awaited = _collective_rows(rank) if len(waits.start) else np.empty(0, np.int64)
        lane_of = np.concatenate([lane_of, lane_of[awaited]])
        columns = {
            label: np.append(column, column[awaited] if label == "collective" else np.full(len(awaited), -1))
            for label, column in details.items()
        }
        look = np.array([self.look_number(account) for account, _ in rank.keys.pairs], np.int64)
        texts = list(rank.events.names)
        lanes: list[LaneRows] = []
        for lane in sorted(range(len(labels)), key=lambda lane: natural_key(labels[lane])):
            rows = np.flatnonzero((lane_of == lane) & (stop > start))
            rows, begin, end = _disjoint(rows, start, stop)
            if not len(rows):
                continue
            named, inverse = np.unique(np.stack([name[rows], key[rows]]), axis=1, return_inverse=True)
            numbers = [self.name_number(shown_name(rank, texts, *pair)) for pair in named.T.tolist()]
            lanes.append(
                LaneRows(
                    rank=rank.events.rank,
                    label=labels[lane],
                    kind="device",
                    depth=0,
                    begin=begin,
                    end=end,
                    name=np.array(numbers, np.int64)[inverse.reshape(-1)],
                    look=look[key[rows]],
                    details={label: column[rows] for label, column in columns.items()},
                )
            )
        return lanes

    def _host(self, rank: RankTrace, origin: int, depth: I64, node_of_row: I64) -> list[LaneRows]:
        """The lanes of a rank's host threads. `depth`, `node_of_row`: of each host row."""
        host, window = rank.events.host, (rank.parts[0].start, rank.parts[-1].stop)
        start, stop = np.clip(host.start, *window) - origin, np.clip(host.stop, *window) - origin
        look = np.array([self._look(HOST_LOOKS[kind]) for kind in sorted(HOST_LOOKS)], np.int64)
        numbers = np.array([-1] * len(rank.events.names), np.int64)
        lanes: list[LaneRows] = []
        for lane in host_lanes(rank.events, depth, window):
            rows, begin, end = _disjoint(lane.rows, start, stop)
            for name in np.unique(host.name[rows]).tolist():
                numbers[name] = self.name_number(rank.events.names[name])
            lanes.append(
                LaneRows(
                    rank=rank.events.rank,
                    label=lane.label,
                    kind="host",
                    depth=lane.depth,
                    begin=begin,
                    end=end,
                    name=numbers[host.name[rows]],
                    look=look[host.what[rows]],
                    details={"stack": node_of_row[rows], "thread": np.full(len(rows), lane.thread)},
                )
            )
        return lanes


def _idle(account: Account) -> Literal["", "host", "launched"]:
    """`Legend.idle` of an account. In a bubble and while it waits for a late rank, the device runs a collective."""
    if account.kind not in ("launch_gap", "data_wait", "checkpoint", "unexplained"):
        return ""
    return "launched" if account.kind == "launch_gap" and account.what in words.LAUNCHED_GAPS else "host"


def _disjoint(rows: I64, start: I64, stop: I64) -> tuple[I64, I64, I64]:
    """(rows in order of start, begin, end) of slices that do not overlap: where two do, the later one begins where the
    earlier one has ended."""
    rows = rows[np.argsort(start[rows], kind="stable")]
    begin, end = start[rows], stop[rows]
    if len(rows):
        begin = np.maximum(begin, np.append(begin[:1], np.maximum.accumulate(end)[:-1]))
    kept = end > begin
    return rows[kept], begin[kept], end[kept]


def lane_numbers(rank: RankTrace) -> tuple[I64, list[str]]:
    """(lane number of each row of `rank.classified`, label of each lane): a lane for each stream or, on CPUs, for each
    thread."""
    events = rank.events
    if len(events.work):
        return events.work.stream.astype(np.int64), list(events.streams)
    # On CPUs the collectives come after the intervals of the training thread in the table.
    spans = np.array(sorted(rank.classified.collectives), np.int64)
    lane = np.zeros(len(rank.classified.start), np.int64)
    threads = events.host.thread[rank.classified.launcher[spans]] if len(spans) else spans
    numbers = {thread: number + 1 for number, thread in enumerate(dict.fromkeys(threads.tolist()))}
    lane[spans] = [numbers[thread] for thread in threads.tolist()]
    return lane, ["training thread", *(f"comm thread {number}" for number in numbers.values())]


def _collective_rows(rank: RankTrace) -> I64:
    """For each wait, the row in `rank.classified` of the collective that follows it: the interval that starts at the
    end of the wait."""
    rows = np.array(sorted(rank.classified.collectives), np.int64)
    starts = rank.classified.start[rows]
    order = np.argsort(starts, kind="stable")
    following = np.searchsorted(starts[order], rank.waits.stop, "left")
    return rows[order][np.minimum(following, len(rows) - 1)]


def shown_name(rank: RankTrace, texts: Sequence[str], name: int, key: int) -> str:
    """The name of a slice: that of its event; for idle time and waits the label of the account, which is more specific
    than the enclosing span. `name`: index into `texts`, -1 for none; `key`: index into `rank.keys.pairs`."""
    account = rank.keys.pairs[key][0]
    return account.label if name < 0 or account.kind in ("launch_gap", "straggler") else texts[name]


def _longest(length_ns: I64, group_starts: I64) -> I64:
    """The index of the longest slice of each group, which gives the group its name and colour. `length_ns`: of each
    slice; `group_starts`: index of the first slice of each group."""
    if len(group_starts) == len(length_ns):
        return group_starts
    most_ns = np.maximum.reduceat(length_ns, group_starts)
    group = np.repeat(np.arange(len(group_starts)), np.diff(np.append(group_starts, len(length_ns))))
    longest = np.flatnonzero(length_ns == most_ns[group])
    return longest[np.unique(group[longest], return_index=True)[1]]
