"""What was measured, as tables of plain columns: for notebooks, SQL and spreadsheets.

`schema` says what each column holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from trainyard.events import I32, I64, OP
from trainyard.ledger import Ledger
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.owners import owners
from trainyard.trace.classify.context import PHASES
from trainyard.trace.export.arrow_stream import Column
from trainyard.trace.export.columns import Columns, known, numbers_of, spell, words_of
from trainyard.trace.export.schema import TABLES
from trainyard.trace.flops.operands import OpArguments
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.rank_results import booked
from trainyard.trace.readers.collectives import group_of
from trainyard.trace.readers.nesting import nearest

_HOST = ("op", "call", "note", "python")
_MODULE = "nn.Module: "


def tables(measured: MeasuredTrace) -> dict[str, Columns]:
    """Each of `TABLES` over all ranks, in memory."""
    ranks = list(by_rank(measured))
    return {name: Columns.joined([one[name] for one in ranks]) for name in TABLES}


def by_rank(measured: MeasuredTrace, wanted: Iterable[str] = TABLES) -> Iterator[dict[str, Columns]]:
    """The `wanted` of `TABLES`, rank by rank, each rank loaded when its turn comes."""
    names, numbers = tuple(wanted), np.array(rank_numbers(measured), np.int32)
    for rank in measured.ranks:
        yield {name: _MAKERS[name](rank, numbers) for name in names}


def rank_numbers(measured: MeasuredTrace) -> tuple[int, ...]:
    """Of the rank at each place of `measured.ranks`, without loading them."""
    return tuple(dict.fromkeys(ledger.scope.ranks[0] for ledger in measured.by_rank))


def ledger_table(ledgers: Iterable[Ledger]) -> Columns:
    """The entries of ledgers of one rank and part each, or of means, whose rank and step are missing."""
    rows = [(ledger, entry) for ledger in ledgers for entry in ledger.sorted_entries()]
    one = [ledger.scope.reduce == "one" for ledger, _ in rows]
    return Columns(
        {
            "rank": numbers_of([r.scope.ranks[0] if alone else None for alone, (r, _) in zip(one, rows)], "int32"),
            "step": words_of([r.scope.steps[0] if alone else None for alone, (r, _) in zip(one, rows)]),
            "partial": np.array([ledger.scope.partial for ledger, _ in rows], bool),
            "wall_ns": np.array([ledger.wall_ns for ledger, _ in rows], np.int64),
            "account": words_of([str(entry.account) for _, entry in rows]),
            "kind": words_of([entry.account.kind for _, entry in rows]),
            "what": words_of([entry.account.what or None for _, entry in rows]),
            "process_group": words_of([entry.account.group or None for _, entry in rows]),
            "phase": words_of([entry.phase for _, entry in rows]),
            "ns": np.array([entry.ns for _, entry in rows], np.int64),
            "hidden_ns": np.array([entry.hidden_ns for _, entry in rows], np.int64),
            "count": np.array([entry.count for _, entry in rows], np.int64),
            "flops": numbers_of([entry.flops for _, entry in rows]),
            "bytes": numbers_of([entry.bytes for _, entry in rows]),
            "how": words_of([entry.how for _, entry in rows]),
        }
    )


def began(rank: RankTrace) -> I64:
    """When each interval of `classified` began: a collective before its last member arrived."""
    one, events = rank.classified, rank.events
    if len(events.work):
        return events.work.start
    start = one.start.copy()
    rows = np.array(sorted(one.collectives), np.int64)
    start[rows] = events.host.start[one.launcher[rows]]
    return start


def op_names(rank: RankTrace) -> I32:
    """Of each interval, the name number of the innermost op around its launch, -1 where there is none."""
    host = rank.events.host
    op = np.where(host.what == OP, np.arange(len(host), dtype=np.int32), nearest(host.what == OP, host.parent))
    return _of(host.name, _of(op, rank.classified.launcher))


def _steps(rank: RankTrace, numbers: I32) -> Columns:
    parts = rank.parts
    return Columns(
        {
            "rank": np.full(len(parts), rank.events.rank, np.int32),
            "step": words_of([part.label for part in parts]),
            "start_ns": np.array([part.start for part in parts], np.int64),
            "stop_ns": np.array([part.stop for part in parts], np.int64),
            "wall_ns": np.array([part.stop - part.start for part in parts], np.int64),
            "partial": np.array([part.partial for part in parts], bool),
        }
    )


def _ledger(rank: RankTrace, numbers: I32) -> Columns:
    return ledger_table(rank.ledgers)


def _work(rank: RankTrace, numbers: I32) -> Columns:
    one, events, host = rank.classified, rank.events, rank.events.host
    stream = events.work.stream if len(events.work) else np.full(len(one.start), -1, np.int32)
    return Columns(
        {
            **_where(rank, one.start),
            "began_ns": began(rank),
            "start_ns": one.start,
            "stop_ns": one.stop,
            "owned_ns": rank.owned,
            "name": spell(one.name, events.names),
            **_account(rank, one.key),
            "stream": spell(stream, events.streams),
            "thread": known(_of(host.thread, one.launcher)),
            "launch_ns": np.ma.MaskedArray(_of(host.start, one.launcher), one.launcher < 0),
            "op": spell(op_names(rank), events.names),
            "module": _module(rank, one.module),
            "flops": known(rank.flops),
            "bytes": known(rank.bytes),
            "begins": one.begins,
        }
    )


def _verdicts(rank: RankTrace, numbers: I32) -> Columns:
    found = owners(rank)
    return Columns(
        {
            **_where(rank, found.start),
            "start_ns": found.start,
            "stop_ns": found.stop,
            "ns": found.stop - found.start,
            **_account(rank, found.key),
            "name": spell(_of(rank.classified.name, found.work), rank.events.names),
            "late_rank": np.ma.MaskedArray(_of(numbers, found.late), found.late < 0),
        }
    )


def _idle(rank: RankTrace, numbers: I32) -> Columns:
    found, names = booked(rank, numbers).idle, rank.events.names
    return Columns(
        {
            **_where(rank, found.start),
            "start_ns": found.start,
            "stop_ns": found.stop,
            "owned_ns": found.ns,
            **_account(rank, found.key),
            "host": spell(_of(rank.events.host.name, found.host), names),
            "next": spell(_of(rank.classified.name, found.next), names),
        }
    )


def _waits(rank: RankTrace, numbers: I32) -> Columns:
    waits = rank.waits
    return Columns(
        {
            **_where(rank, waits.start),
            "start_ns": waits.start,
            "stop_ns": waits.stop,
            "owned_ns": rank.waited,
            **_account(rank, waits.key),
            "late_rank": numbers[waits.late],
        }
    )


def _collectives(rank: RankTrace, numbers: I32) -> Columns:
    one = rank.classified
    rows = np.array(sorted(one.collectives), np.int64)
    found = [one.collectives[row] for row in rows.tolist()]
    return Columns(
        {
            **_where(rank, one.start[rows]),
            "began_ns": began(rank)[rows],
            "start_ns": one.start[rows],
            "stop_ns": one.stop[rows],
            "owned_ns": rank.owned[rows],
            "name": spell(one.name[rows], rank.events.names),
            **_account(rank, one.key[rows]),
            "collective": words_of([each.name for each in found]),
            "process_group": words_of([group_of(each, rank.events) or None for each in found]),
            "members": numbers_of([each.members or len(each.ranks) or None for each in found]),
            "seq": known(np.array([each.seq for each in found], np.int64)),
            "bytes": numbers_of([each.size or None for each in found]),
            "peer": known(np.array([each.peer for each in found], np.int64)),
        }
    )


def _host(rank: RankTrace, numbers: I32) -> Columns:
    host, events, around = rank.events.host, rank.events, rank.context
    shapes = [OpArguments(shape).text() for shape in events.shapes]
    return Columns(
        {
            **_where(rank, host.start),
            "row": np.arange(len(host), dtype=np.int32),
            "parent": known(host.parent),
            "start_ns": host.start,
            "stop_ns": host.stop,
            "name": spell(host.name, events.names),
            "thread": host.thread,
            "what": spell(host.what.astype(np.int32), _HOST),
            "phase": spell(around.phase.astype(np.int32), PHASES),
            "module": _module(rank, around.module),
            "cause": spell(around.cause.astype(np.int32), around.causes),
            "shape": spell(host.shape, shapes),
            "seq": known(host.seq),
        }
    )


# Of one rank's trace and the numbers of the ranks at each place.
_MAKERS: Mapping[str, Callable[[RankTrace, I32], Columns]] = {
    "steps": _steps,
    "ledger": _ledger,
    "work": _work,
    "verdicts": _verdicts,
    "idle": _idle,
    "waits": _waits,
    "collectives": _collectives,
    "host": _host,
}


def _where(rank: RankTrace, start: I64) -> dict[str, Column]:
    bounds = np.array([rank.parts[0].start, *(part.stop for part in rank.parts)], np.int64)
    place = (np.searchsorted(bounds, start, "right") - 1).astype(np.int32)
    place[place == len(rank.parts)] = -1
    return {
        "rank": np.full(len(start), rank.events.rank, np.int32),
        "step": spell(place, [part.label for part in rank.parts]),
    }


def _account(rank: RankTrace, key: I32) -> dict[str, Column]:
    """Account, its kind, and phase; what no key claims is unexplained."""
    pairs = rank.keys.pairs
    accounts = [*(str(account) for account, _ in pairs), "unexplained"]
    kinds = [*(account.kind for account, _ in pairs), "unexplained"]
    phases = [*(PHASES[phase] for _, phase in pairs), "other"]
    place = np.where(key < 0, len(pairs), key).astype(np.int32)
    return {"account": spell(place, accounts), "kind": spell(place, kinds), "phase": spell(place, phases)}


def _module(rank: RankTrace, name: I32) -> Column:
    found = spell(name, rank.events.names)
    return spell(found.codes, [word.removeprefix(_MODULE) for word in found.words])


def _of(column: np.ndarray, rows: I32) -> np.ndarray:
    """`column` at `rows`, -1 where the row is."""
    return np.append(column, np.array([-1], column.dtype))[rows]
