"""Table of stored runs."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.report.view.view import Column, Table
from trainyard.store.index.run_index import RunRow

MOST = 38
"""Number of runs on one screen."""


def table(rows: Sequence[RunRow]) -> Table:
    """The table of stored runs, one per row, in the given order."""
    columns = (
        Column(title="id", id=True), Column(title="job"), Column(title="state"), Column(title="tags", optional=True),
        Column(title="step, ms", digits=3, optional=True), Column(title="when (UTC)", id=True, optional=True),
        Column(title="layout", optional=True),
        Column(
            title="per second", digits=0, optional=True,
            note="Per second: tokens, images or samples, whichever the job counts.",
        ),
    )  # fmt: skip
    cells = tuple(
        (
            row.id, row.job, row.state, ", ".join(row.tags), row.step_ns / 1e6 if row.step_ns else None,
            row.started[:16].replace("T", " "), row.layout, row.tokens_per_s or None,
        )
        for row in rows
    )  # fmt: skip
    return Table(title="id", notes=(), columns=columns, rows=cells)
