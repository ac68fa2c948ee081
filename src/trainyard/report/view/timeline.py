"""The timeline of a page: a lane, one row of the drawing, for each rank and stream (on a CPU: for the training thread
and each thread that communicates).

A slice is a rectangle in a lane: an interval of work, idle time or a wait. Its look is its place in the legend: the
account, with a colour.
"""

from __future__ import annotations

import numpy as np

from trainyard.events import I64
from trainyard.ledger import AFTER, BEFORE, WINDOW
from trainyard.report.view.view import Lane, Legend, Timeline
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.measured_trace import MeasuredTrace

_MOST_SLICES = 100_000
"""Slices of a page above which short neighbours are merged."""


class _Table:
    """Texts numbered in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def timeline(measured: MeasuredTrace, max_slices: int = _MOST_SLICES) -> Timeline:
    """All ranks' intervals from the start of the earliest window on, in ns. If there are more than `max_slices` slices,
    short neighbours are merged into one slice with the name and colour of the longest, as coarsely as needed.

    Unaligned ranks each start at zero, since their clocks are not comparable.
    """
    aligned = measured.alignment.aligned
    starts = [rank.parts[0].start for rank in measured.ranks]
    origins = [min(starts)] * len(starts) if aligned != "no" else starts
    length_ns = max(rank.parts[-1].stop - origin for rank, origin in zip(measured.ranks, origins))
    events = sum(len(rank.classified.start) for rank in measured.ranks)
    fold_ns = 0  # slices shorter than this are merged; doubled until there are few enough slices
    while True:
        names, looks = _Table(), _Table()
        colours: list[str] = []
        lanes = [
            lane
            for rank, origin in zip(measured.ranks, origins)
            for lane in _lanes(rank, origin, fold_ns, names, looks, colours)
        ]
        slice_count = sum(len(lane.starts) for lane in lanes)
        if slice_count <= max_slices or fold_ns > length_ns:
            break
        fold_ns = 2 * fold_ns or max(1, length_ns // max_slices)
    return Timeline(
        length_ns=length_ns,
        names=list(names.numbers),
        legend=tuple(Legend(label=label, colour=colour) for label, colour in zip(looks.numbers, colours)),
        lanes=tuple(lanes),
        steps=tuple((step_label(p.label), p.start - origins[0], p.stop - origins[0]) for p in measured.ranks[0].parts),
        events=events,
        merged=max(0, events - slice_count),
        aligned=aligned,
    )


def _lanes(rank: RankTrace, origin: int, fold_ns: int, names: _Table, looks: _Table, colours: list[str]) -> list[Lane]:
    """The lanes of a rank: its streams and, in them, waits; times in ns from `origin`.

    Slices and gaps shorter than `fold_ns` are merged into one slice that has the name of its longest. Adds the names
    of slices to `names`, and labels of accounts to `looks` with their colours to `colours`; lanes refer to them by
    number.
    """
    classified, waits = rank.classified, rank.waits
    lane_of, labels = lane_numbers(rank)
    window = (rank.parts[0].start, rank.parts[-1].stop)
    # Rows: the intervals of work, then the waits; `lane_of`, `key` and `name` get the same rows.
    start = np.clip(np.concatenate([classified.start, waits.start]), *window) - origin
    stop = np.clip(np.concatenate([classified.stop, waits.stop]), *window) - origin
    key = np.concatenate([classified.key, waits.key])
    name = np.concatenate([classified.name, np.full(len(waits.start), -1)])
    wait_lane = lane_of[_collective_rows(rank)] if len(waits.start) else np.empty(0, np.int64)
    lane_of = np.concatenate([lane_of, wait_lane])
    look = np.array([_look(rank, k, looks, colours) for k in range(len(rank.keys.pairs))], np.int64)
    texts = list(rank.events.names)
    lanes: list[Lane] = []
    for lane, label in enumerate(labels):
        rows = np.flatnonzero((lane_of == lane) & (stop > start))
        rows = rows[np.argsort(start[rows], kind="stable")]
        if not len(rows):
            continue
        begin = start[rows]
        end = stop[rows]
        # If slices overlap, the later one begins where the earlier ones have ended.
        begin = np.maximum(begin, np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]]))
        kept = end > begin
        rows, begin, end = rows[kept], begin[kept], end[kept]
        first = _folds(begin, end, fold_ns)  # index of the first slice of each merged one; `last`: of the last
        last = np.concatenate([first[1:] - 1, [len(rows) - 1]])
        longest = rows[_longest(end - begin, first)]
        named = zip(name[longest].tolist(), key[longest].tolist())
        lanes.append(
            Lane(
                rank=rank.events.rank,
                label=label,
                starts=begin[first].tolist(),
                lengths=(end[last] - begin[first]).tolist(),
                name=[names.number(shown_name(rank, texts, row_name, row_key)) for row_name, row_key in named],
                look=look[key[longest]].tolist(),
            )
        )
    return lanes


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


def step_label(label: str) -> str:
    """The label of a part of the window as shown: `step 7`, or the name of a part that is not a step."""
    return label if label in (BEFORE, WINDOW, AFTER) else f"step {label}"


def shown_name(rank: RankTrace, texts: list[str], name: int, key: int) -> str:
    """The name of a slice: that of its event; for idle time and waits the label of the account, which is more specific
    than the enclosing span. `name`: index into `texts`, -1 for none; `key`: index into `rank.keys.pairs`."""
    account = rank.keys.pairs[key][0]
    return account.label if name < 0 or account.kind in ("launch_gap", "straggler") else texts[name]


def _look(rank: RankTrace, key: int, looks: _Table, colours: list[str]) -> int:
    """The number in `looks` of the account of `key`, an index into `rank.keys.pairs`. A new account is added to
    `looks`, and its colour to `colours`."""
    account = rank.keys.pairs[key][0]
    number = looks.number(account.label)
    if number == len(colours):
        colours.append(account.colour)
    return number


def _folds(begin: I64, end: I64, fold_ns: int) -> I64:
    """Indices of the first slice of each group that is drawn as one: slices shorter than `fold_ns` that begin in the
    same interval of that length. `begin`, `end`: of each slice in ns."""
    if not fold_ns:
        return np.arange(len(begin))
    bucket, is_long = begin // fold_ns, end - begin >= fold_ns
    is_separate = (bucket[1:] != bucket[:-1]) | is_long[1:] | is_long[:-1]
    return np.flatnonzero(np.concatenate([[True], is_separate]))


def _longest(length_ns: I64, group_starts: I64) -> I64:
    """The index of the longest slice of each group, which gives the group its name and colour. `length_ns`: of each
    slice; `group_starts`: index of the first slice of each group."""
    group = np.repeat(np.arange(len(group_starts)), np.diff(np.append(group_starts, len(length_ns))))
    order = np.lexsort((-length_ns, group))
    return order[group_starts]
