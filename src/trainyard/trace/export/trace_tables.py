"""A measured trace as tables of plain columns, for notebooks, SQL and spreadsheets.

`schema` describes each column. An interval is a row of `rank.classified`: a kernel or copy, or a stretch of a CPU op. A
key is the number of an account and phase in `rank.keys.pairs`. A part is a labelled period of the rank's window, such
as a step. Builders (`_build_...`) make one table of one rank; `numbers[i]` is the rank number of the rank with index i,
and only the builders of tables that name other ranks use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from trainyard.events import I32, I64, OP
from trainyard.ledger import Ledger
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.trace.booking.book_rank import RankTrace
from trainyard.trace.booking.owners import find_owners
from trainyard.trace.classify.context import PHASES
from trainyard.trace.export.arrow_stream import Column
from trainyard.trace.export.columns import Columns, mask_unknown, number_column, text_column, text_column_from_codes
from trainyard.trace.export.schema import TABLES
from trainyard.trace.flops.operands import OpArguments
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.rank_results import convert_rank
from trainyard.trace.readers.collectives import group_of
from trainyard.trace.readers.nesting import nearest_ancestor

_HOST_KINDS = ("op", "call", "note", "python")


def build_tables(measured: MeasuredTrace) -> dict[str, Columns]:
    """All `TABLES` over all ranks, in memory."""
    ranks = list(tables_by_rank(measured))
    return {name: Columns.joined([rank_tables[name] for rank_tables in ranks]) for name in TABLES}


def tables_by_rank(measured: MeasuredTrace, table_names: Iterable[str] = TABLES) -> Iterator[dict[str, Columns]]:
    """Yields, for each rank in turn, name -> table for `table_names`, keys of `TABLES`; one rank is loaded at a
    time."""
    names, numbers = tuple(table_names), np.array(rank_numbers(measured), np.int32)
    for rank in measured.ranks:
        yield {name: _BUILDERS[name](rank, numbers) for name in names}


def rank_numbers(measured: MeasuredTrace) -> tuple[int, ...]:
    """The rank number of each item in `measured.ranks`, without loading them."""
    return tuple(dict.fromkeys(ledger.scope.ranks[0] for ledger in measured.by_rank))


def ledger_table(ledgers: Iterable[Ledger]) -> Columns:
    """The table of the entries of ledgers, one row for each entry.

    A ledger covers one rank and part, or is a mean, whose rank and step are missing.
    """
    rows = [(ledger, entry) for ledger in ledgers for entry in ledger.sorted_entries()]
    # The scope of each row's ledger, None for a mean.
    scopes = [ledger.scope if ledger.scope.reduce == "one" else None for ledger, _ in rows]
    return Columns(
        {
            "rank": number_column([scope.ranks[0] if scope else None for scope in scopes], "int32"),
            "step": text_column([scope.steps[0] if scope else None for scope in scopes]),
            "partial": np.array([ledger.scope.partial for ledger, _ in rows], bool),
            "wall_ns": np.array([ledger.wall_ns for ledger, _ in rows], np.int64),
            "account": text_column([str(entry.account) for _, entry in rows]),
            "kind": text_column([entry.account.kind for _, entry in rows]),
            "what": text_column([entry.account.what or None for _, entry in rows]),
            "process_group": text_column([entry.account.group or None for _, entry in rows]),
            "phase": text_column([entry.phase for _, entry in rows]),
            "ns": np.array([entry.ns for _, entry in rows], np.int64),
            "hidden_ns": np.array([entry.hidden_ns for _, entry in rows], np.int64),
            "count": np.array([entry.count for _, entry in rows], np.int64),
            "flops": number_column([entry.flops for _, entry in rows]),
            "bytes": number_column([entry.bytes for _, entry in rows]),
            "how": text_column([entry.how for _, entry in rows]),
        }
    )


def start_ns_of_intervals(rank: RankTrace) -> I64:
    """When each interval of `rank.classified` began, ns; for a collective, its own start and not the last member's
    arrival, at which `classified.start` has it."""
    classified, events = rank.classified, rank.events
    if len(events.work):
        return events.work.start
    start = classified.start.copy()
    rows = np.array(sorted(classified.collectives), np.int64)
    start[rows] = events.host.start[classified.launcher[rows]]
    return start


def op_names(rank: RankTrace) -> I32:
    """The name number (index into `rank.events.names`) of the innermost op around the launch of each interval of
    `rank.classified`, -1 for none."""
    host = rank.events.host
    op = np.where(host.what == OP, np.arange(len(host), dtype=np.int32), nearest_ancestor(host.what == OP, host.parent))
    return _take_or_minus_one(host.name, _take_or_minus_one(op, rank.classified.launcher))


def _build_steps(rank: RankTrace, numbers: I32) -> Columns:
    """The table `steps` of a rank: a row for each part."""
    parts = rank.parts
    return Columns(
        {
            "rank": np.full(len(parts), rank.events.rank, np.int32),
            "step": text_column([part.label for part in parts]),
            "start_ns": np.array([part.start for part in parts], np.int64),
            "stop_ns": np.array([part.stop for part in parts], np.int64),
            "wall_ns": np.array([part.stop - part.start for part in parts], np.int64),
            "partial": np.array([part.partial for part in parts], bool),
            "kind": text_column([part.kind for part in parts]),
        }
    )


def _build_ledger(rank: RankTrace, numbers: I32) -> Columns:
    return ledger_table(rank.ledgers)


def _build_work(rank: RankTrace, numbers: I32) -> Columns:
    """The table `work` of a rank: a row for each classified interval."""
    classified, events, host = rank.classified, rank.events, rank.events.host
    stream = events.work.stream if len(events.work) else np.full(len(classified.start), -1, np.int32)
    return Columns(
        {
            **_rank_and_step_columns(rank, classified.start),
            "began_ns": start_ns_of_intervals(rank),
            "start_ns": classified.start,
            "stop_ns": classified.stop,
            "owned_ns": rank.owned,
            "name": text_column_from_codes(classified.name, events.names),
            **_account_columns(rank, classified.key),
            "stream": text_column_from_codes(stream, events.streams),
            "thread": mask_unknown(_take_or_minus_one(host.thread, classified.launcher)),
            "launch_ns": np.ma.MaskedArray(
                _take_or_minus_one(host.start, classified.launcher), classified.launcher < 0
            ),
            "op": text_column_from_codes(op_names(rank), events.names),
            "module": _module_column(rank, classified.module),
            "flops": mask_unknown(rank.flops),
            "bytes": mask_unknown(rank.bytes),
            "begins": classified.begins,
        }
    )


def _build_verdicts(rank: RankTrace, numbers: I32) -> Columns:
    """The table `verdicts` of a rank: a row for each stretch of the window, with its owner (the work, wait or idle time
    to which the ledger books it). `numbers`: the rank number of each rank index."""
    owners = find_owners(rank)
    return Columns(
        {
            **_rank_and_step_columns(rank, owners.start),
            "start_ns": owners.start,
            "stop_ns": owners.stop,
            "ns": owners.stop - owners.start,
            **_account_columns(rank, owners.key),
            "name": text_column_from_codes(_take_or_minus_one(rank.classified.name, owners.work), rank.events.names),
            "late_rank": np.ma.MaskedArray(_take_or_minus_one(numbers, owners.late), owners.late < 0),
        }
    )


def _build_idle(rank: RankTrace, numbers: I32) -> Columns:
    """The table `idle` of a rank: a row for each idle interval, cut where the innermost host span changes."""
    idle, names = convert_rank(rank, numbers).idle, rank.events.names
    return Columns(
        {
            **_rank_and_step_columns(rank, idle.start),
            "start_ns": idle.start,
            "stop_ns": idle.stop,
            "owned_ns": idle.ns,
            **_account_columns(rank, idle.key),
            "host": text_column_from_codes(_take_or_minus_one(rank.events.host.name, idle.host), names),
            "next": text_column_from_codes(_take_or_minus_one(rank.classified.name, idle.next), names),
        }
    )


def _build_waits(rank: RankTrace, numbers: I32) -> Columns:
    """The table `waits` of a rank: a row for each wait. `numbers`: the rank number of each rank index."""
    waits = rank.waits
    return Columns(
        {
            **_rank_and_step_columns(rank, waits.start),
            "start_ns": waits.start,
            "stop_ns": waits.stop,
            "owned_ns": rank.waited,
            **_account_columns(rank, waits.key),
            "late_rank": numbers[waits.late],
        }
    )


def _build_collectives(rank: RankTrace, numbers: I32) -> Columns:
    """The table `collectives` of a rank: a row for each collective and transfer."""
    classified = rank.classified
    rows = np.array(sorted(classified.collectives), np.int64)
    collectives = [classified.collectives[row] for row in rows.tolist()]
    return Columns(
        {
            **_rank_and_step_columns(rank, classified.start[rows]),
            "began_ns": start_ns_of_intervals(rank)[rows],
            "start_ns": classified.start[rows],
            "stop_ns": classified.stop[rows],
            "owned_ns": rank.owned[rows],
            "name": text_column_from_codes(classified.name[rows], rank.events.names),
            **_account_columns(rank, classified.key[rows]),
            "collective": text_column([collective.name for collective in collectives]),
            "process_group": text_column([group_of(collective, rank.events) or None for collective in collectives]),
            "members": number_column(
                [collective.members or len(collective.ranks) or None for collective in collectives]
            ),
            "seq": mask_unknown(np.array([collective.seq for collective in collectives], np.int64)),
            "bytes": number_column([collective.size or None for collective in collectives]),
            "peer": mask_unknown(np.array([collective.peer for collective in collectives], np.int64)),
        }
    )


def _build_host(rank: RankTrace, numbers: I32) -> Columns:
    """The table `host` of a rank: a row for each host span."""
    host, events, host_context = rank.events.host, rank.events, rank.context
    shapes = [OpArguments(shape).text() for shape in events.shapes]
    return Columns(
        {
            **_rank_and_step_columns(rank, host.start),
            "row": np.arange(len(host), dtype=np.int32),
            "parent": mask_unknown(host.parent),
            "start_ns": host.start,
            "stop_ns": host.stop,
            "name": text_column_from_codes(host.name, events.names),
            "thread": host.thread,
            "what": text_column_from_codes(host.what.astype(np.int32), _HOST_KINDS),
            "phase": text_column_from_codes(host_context.phase.astype(np.int32), PHASES),
            "module": _module_column(rank, host_context.module),
            "cause": text_column_from_codes(host_context.cause.astype(np.int32), host_context.causes),
            "shape": text_column_from_codes(host.shape, shapes),
            "seq": mask_unknown(host.seq),
        }
    )


# Table -> function of one rank's trace and the rank number of each rank index.
_BUILDERS: Mapping[str, Callable[[RankTrace, I32], Columns]] = {
    "steps": _build_steps,
    "ledger": _build_ledger,
    "work": _build_work,
    "verdicts": _build_verdicts,
    "idle": _build_idle,
    "waits": _build_waits,
    "collectives": _build_collectives,
    "host": _build_host,
}


def _rank_and_step_columns(rank: RankTrace, start: I64) -> dict[str, Column]:
    """The columns `rank` and `step` of rows that start at `start` (ns). The step is the label of the part in which a
    row starts; it is missing outside of all parts."""
    bounds = np.array([rank.parts[0].start, *(part.stop for part in rank.parts)], np.int64)
    step = (np.searchsorted(bounds, start, "right") - 1).astype(np.int32)  # index of the part, -1 before the first
    step[step == len(rank.parts)] = -1
    return {
        "rank": np.full(len(start), rank.events.rank, np.int32),
        "step": text_column_from_codes(step, [part.label for part in rank.parts]),
    }


def _account_columns(rank: RankTrace, key: I32) -> dict[str, Column]:
    """The columns `account`, `kind` and `phase` of rows with these keys; -1 is unexplained time."""
    pairs = rank.keys.pairs
    accounts = [*(str(account) for account, _ in pairs), "unexplained"]
    kinds = [*(account.kind for account, _ in pairs), "unexplained"]
    phases = [*(PHASES[phase] for _, phase in pairs), "other"]
    row = np.where(key < 0, len(pairs), key).astype(np.int32)
    return {
        "account": text_column_from_codes(row, accounts),
        "kind": text_column_from_codes(row, kinds),
        "phase": text_column_from_codes(row, phases),
    }


def _module_column(rank: RankTrace, name: I32) -> Column:
    names = text_column_from_codes(name, rank.events.names)
    return text_column_from_codes(names.codes, [word.removeprefix(MODULE_PREFIX) for word in names.words])


def _take_or_minus_one(column: np.ndarray, rows: I32) -> np.ndarray:
    """`column[rows]`, -1 for row -1."""
    return np.append(column, np.array([-1], column.dtype))[rows]
