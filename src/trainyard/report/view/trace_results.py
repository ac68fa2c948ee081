"""The results of the modes of `trainyard trace` as plain data: what-if, SQL, reconcile and memory snapshots."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trainyard import units
from trainyard.ledger import AccountChange, Ledger
from trainyard.trace.export.sql import Answer
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.memory.measure_snapshot import MemoryRecord
from trainyard.trace.reconcile import TOOLS
from trainyard.trace.whatif.what_if import Prediction


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a trace predicted with `changes` applied: the mean step before and after, and the ledger of each
    rank and step. The differences of `accounts` sum to the change of the mean step."""

    schema: Literal["trainyard/what-if/1"] = "trainyard/what-if/1"
    changes: tuple[str, ...]
    before: Ledger
    """The mean measured step."""
    after: Ledger
    """The mean predicted step."""
    accounts: tuple[AccountChange, ...]
    ledgers: tuple[Ledger, ...]
    """Predicted: one for each rank and step, then the mean."""
    recovered_ns: int
    """By how much the mean step is shorter, the price of a finding with this change; negative if it is longer."""
    interval_ns: tuple[int, int] | None = None
    """The 80 % interval of `recovered_ns` from its variation over steps; None for fewer than two steps."""
    warnings: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """The predicted accounts for a notebook."""
        from trainyard.report.render.html_tables import tables_html
        from trainyard.report.view.fact_tables import prediction_table, prediction_title, with_notes

        return tables_html(prediction_title(self), (with_notes(prediction_table(self, full=True), self.warnings),))


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a SQL query. `more`: there are more rows than the limit of a query."""

    schema: Literal["trainyard/sql/1"] = "trainyard/sql/1"
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool
    warnings: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """All rows for a notebook."""
        from trainyard.report.render.html_tables import tables_html
        from trainyard.report.view.fact_tables import query_table, with_notes

        title = f"The first {len(self.rows):,} rows" if self.more else units.counted(len(self.rows), "row")
        return tables_html(title, (with_notes(query_table(self), self.warnings),))


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A rank by another tool's definitions. `window_ns`: (start, stop) of the time that the tool covers; `ns`: the
    tool's name of a figure -> ns."""

    rank: int
    window_ns: tuple[int, int]
    ns: dict[str, int]


class Reconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of each rank by another tool's definitions. `differs`: how these differ from those of a ledger."""

    schema: Literal["trainyard/reconcile/1"] = "trainyard/reconcile/1"
    tool: str
    ranks: tuple[RankFigures, ...]
    differs: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """The figures of all ranks for a notebook."""
        from trainyard.report.render.html_tables import tables_html
        from trainyard.report.view.fact_tables import reconciliation_tables, with_notes

        *first_tables, last_table = reconciliation_tables(self, full=True)
        return tables_html(last_table.title, (*first_tables, with_notes(last_table, self.warnings)))


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A memory snapshot of torch's allocator, measured: one record for each device."""

    schema: Literal["trainyard/memory/1"] = "trainyard/memory/1"
    devices: tuple[MemoryRecord, ...]

    def _repr_html_(self) -> str:
        """What held the peak of each device, for a notebook."""
        from trainyard.report.memory.memory_tables import tables, title
        from trainyard.report.render.html_tables import tables_html

        return tables_html(title(self), tables(self))


def predicted_steps(measured: MeasuredTrace, prediction: Prediction) -> WhatIf:
    """The result of `trace what-if` from a measured trace and the prediction for it."""
    return WhatIf(
        changes=prediction.supposed,
        before=measured.mean,
        after=prediction.mean,
        accounts=prediction.changes,
        ledgers=prediction.would.ledgers,
        recovered_ns=prediction.recovery.ns,
        interval_ns=prediction.recovery.interval_ns,
        warnings=warnings_of(measured),
    )


def query_result(answer: Answer, measured: MeasuredTrace) -> QueryResult:
    """The result of `trace sql` from the rows of a query on a measured trace."""
    return QueryResult(columns=answer.columns, rows=answer.rows, more=answer.more, warnings=warnings_of(measured))


def reconciled_ranks(measured: MeasuredTrace, tool: str) -> Reconciliation:
    """The figures of every rank. Raises `BadInput` if the tool's rules leave no device work on a rank."""
    figures = [(rank.events.rank, TOOLS[tool](rank.events)) for rank in measured.ranks]
    return Reconciliation(
        tool=tool,
        ranks=tuple(
            RankFigures(rank=rank, window_ns=own.window, ns={figure.name: figure.ns for figure in own.figures})
            for rank, own in figures
        ),
        differs=figures[0][1].differs,
        warnings=warnings_of(measured),
    )


def warnings_of(measured: MeasuredTrace) -> tuple[str, ...]:
    """Which files could not be read, or only in part."""
    return (measured.damage,) if measured.damage else ()
