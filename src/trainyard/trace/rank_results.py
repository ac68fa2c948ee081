"""Converts a rank's trace to `Booked`, the data structure that detectors (the rules that state findings) read.

A stretch is a period of idle time in which one account and phase (numbered by `key`, an index into `rank.keys.pairs`)
owns the time; a piece is a part of a stretch during which the host stays in one innermost span.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from trainyard.booked import Booked, BookedPart, Idle, Late
from trainyard.events import I32, I64
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.idle import find_idle
from trainyard.trace.booking.intervals import cut_at_bounds
from trainyard.trace.classify.context import PHASES
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.readers.nesting import InnermostSpans, innermost_spans

_MAX_TOTAL_ROWS = 8_000_000
"""Limit on the rows of all ranks: detectors need all of them in memory at once."""
_BLOCK_ROWS = 1 << 14
_WORK_KINDS = ("compute", "straggler", "comm", "copy")


def all_booked(measured: MeasuredTrace) -> list[Booked]:
    """Converts the ranks that the mean covers, in order of rank.

    If they have more than `_MAX_TOTAL_ROWS` rows (estimated from the first rank), an evenly spaced subset is converted,
    which always includes the first rank and the rank that the others wait for most.
    """
    rank_numbers = np.array(measured.rank_numbers, np.int32)
    comparable = np.array(measured.comparable_indices)
    first = convert_rank(measured.ranks[int(comparable[0])], rank_numbers)
    rank_limit = max(1, _MAX_TOTAL_ROWS // max(1, len(first.start) + len(first.events.host)))
    spaced = np.linspace(0, len(comparable) - 1, min(rank_limit, len(comparable))).astype(int)
    late = max(measured.mean.late, key=lambda rank: measured.mean.late[rank], default=int(rank_numbers[0]))
    indices = {*comparable[spaced].tolist(), *np.intersect1d(comparable, np.flatnonzero(rank_numbers == late)).tolist()}
    rest = sorted(indices - {int(comparable[0])})
    ranks = [first] + [convert_rank(measured.ranks[index], rank_numbers) for index in rest]
    lateness_of_rank = {row.rank: row for row in measured.lateness}
    return [
        replace(rank_booked, last=lateness.last, met=lateness.met)
        if (lateness := lateness_of_rank.get(rank_booked.events.rank))
        else rank_booked
        for rank_booked in ranks
    ]


def convert_rank(rank: RankTrace, ranks: I32) -> Booked:
    """Converts one rank's trace, without its lateness. `ranks[i]`: the rank number of index i in `rank.waits.late`."""
    classified, events, context, waits = rank.classified, rank.events, rank.context, rank.waits
    stretches = _idle_device(rank) if len(events.work) else _idle_cpu(rank)
    return Booked(
        events=events,
        pairs=tuple((account, PHASES[phase]) for account, phase in rank.keys.pairs),
        parts=tuple(
            BookedPart(label=part.label, start=part.start, stop=part.stop, partial=part.partial, kind=part.kind)
            for part in rank.parts
        ),
        start=classified.start,
        stop=classified.stop,
        key=classified.key,
        name=classified.name,
        module=classified.module,
        launcher=classified.launcher,
        begins=classified.begins,
        owned=rank.owned,
        flops=rank.flops,
        bytes=rank.bytes,
        collectives=classified.collectives,
        idle=stretches,
        waits=Late(start=waits.start, stop=waits.stop, key=waits.key, late=ranks[waits.late], ns=rank.waited),
        phase=context.phase,
        cause=context.cause,
        causes=context.causes,
        host_module=context.module,
    )


def _idle_device(rank: RankTrace) -> Idle:
    """The booked idle time of a rank with device work, cut where the innermost span of the launching thread changes.

    Each piece has `host`, the innermost host row (-1 for none), `next`, the row of the device work that ends the idle
    time, and `ns`, the length of its part inside the window. The launching thread is that of the launch of `next`.
    Columns of `host` and `work` have one row per host span and per device interval; `work.call` is the host row of the
    launch, -1 for none.
    """
    events, host, work = rank.events, rank.events.host, rank.events.work
    start, stop, key = find_idle(events, rank.context, rank.keys)
    order = np.argsort(start, kind="stable")
    start, stop, key = start[order], stop[order], key[order].astype(np.int32)
    # A stretch ends at or before the work that ends the gap, and no work starts inside a gap.
    next_work = np.searchsorted(work.start, stop, "left").astype(np.int32)
    launching_thread = host.thread[work.call[next_work]]
    launching = np.flatnonzero(np.bincount(launching_thread)).tolist()
    threads = {thread: innermost_spans(events.host, thread) for thread in {events.main, *launching}}
    main = threads[events.main]
    # Space for every piece: pages that are never written take no memory.
    max_pieces = len(start) + main.edges_in(start, stop)
    max_pieces += sum(threads[thread].edges_in(start, stop) for thread in launching if thread != events.main)
    columns = Idle(
        start=np.empty(max_pieces, np.int64), stop=np.empty(max_pieces, np.int64), key=np.empty(max_pieces, np.int32),
        ns=np.empty(max_pieces, np.int64), host=np.empty(max_pieces, np.int32), next=np.empty(max_pieces, np.int32),
    )  # fmt: skip
    window = (rank.parts[0].start, rank.parts[-1].stop)
    piece_count = 0
    for first in range(0, len(start), _BLOCK_ROWS):  # stretches do not overlap: blocks in order give pieces in order
        block = slice(first, first + _BLOCK_ROWS)
        row, begin, end, span = _cut_at_span_changes(start[block], stop[block], launching_thread[block], threads, main)
        target = slice(piece_count, piece_count + len(row))
        columns.start[target], columns.stop[target], columns.host[target] = begin, end, span
        columns.key[target], columns.next[target] = key[block][row], next_work[block][row]
        columns.ns[target] = np.clip(end, *window) - np.clip(begin, *window)
        piece_count += len(row)
    return Idle(**{name: getattr(columns, name)[:piece_count] for name in columns.__struct_fields__})


def _cut_at_span_changes(
    start: I64, stop: I64, thread: I32, threads: Mapping[int, InnermostSpans], main: InnermostSpans
) -> tuple[I64, I64, I64, I32]:
    """Cuts stretches where the innermost span of their launching thread changes.

    `start`, `stop` (ns), `thread` (thread number): of each stretch, sorted by start; `threads`: thread number -> its
    innermost spans; `main`: those of the training thread. Returns (index of the stretch, begin ns, end ns, host row of
    the innermost span, -1 for none) of each piece, sorted by begin.
    """
    columns: list[tuple[I64, I64, I64, I32]] = []
    for thread_number in np.flatnonzero(np.bincount(thread)).tolist():
        rows, spans = np.flatnonzero(thread == thread_number), threads[thread_number]
        edges = spans.between(start[0], stop[-1])
        if spans is not main:
            edges = np.sort(np.concatenate([edges, main.between(start[0], stop[-1])]), kind="stable")
        piece, begin, end = cut_at_bounds(start[rows], stop[rows], edges)
        span = spans.at(begin)
        if spans is not main:  # a thread without an open span waits for the main thread
            span = np.where(span < 0, main.at(begin), span)
        nonempty = end > begin
        columns.append((rows[piece[nonempty]], begin[nonempty], end[nonempty], span[nonempty]))
    row, begin, end, span = (np.concatenate(column) for column in zip(*columns))
    order = np.argsort(begin, kind="stable") if len(columns) > 1 else slice(None)
    return row[order], begin[order], end[order], span[order]


def _idle_cpu(rank: RankTrace) -> Idle:
    """The idle time of a rank that trains on a CPU: when its training thread did no compute, communication or copies.

    `host` is the innermost span of the training thread; no work is recorded that ends the idle time, so `next` is -1.
    """
    classified = rank.classified
    is_idle_key = np.array([account.kind not in _WORK_KINDS for account, _ in rank.keys.pairs], bool)
    rows = np.flatnonzero(is_idle_key[classified.key]) if len(classified.key) else np.empty(0, np.int64)
    rows = rows[np.argsort(classified.start[rows], kind="stable")]
    return Idle(
        start=classified.start[rows],
        stop=classified.stop[rows],
        key=classified.key[rows].astype(np.int32, copy=False),
        ns=rank.owned[rows],
        host=classified.launcher[rows].astype(np.int32, copy=False),
        next=np.full(len(rows), -1, np.int32),
    )
