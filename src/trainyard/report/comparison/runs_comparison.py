"""The comparison of two or more runs as plain data: what the page draws and `trainyard report A B --out x.json` writes.

An account is a category of time of a training step, such as `comm/all_gather@dp_shard`. Times are integer ns. Texts may
contain names from traces: renderers must escape them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.report.comparison.compared_run import RunKind
from trainyard.report.comparison.finding_changes import FindingChange
from trainyard.report.comparison.ledger_rows import LedgerRow
from trainyard.report.comparison.plan_check import PlanCheck
from trainyard.report.comparison.run_facts import FactRow
from trainyard.report.comparison.step_series import RunSeries
from trainyard.report.view.comparison import Comparison
from trainyard.report.view.view import KeyFigure

RUNS_COMPARISON_SCHEMA = "trainyard/runs-comparison/1"


class RunColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the comparison. `letter`: A, B, ..., by which it is referred to; `subject`: device, ranks and job in
    words; `state`: of a stored run. `wall_ns`: the mean profiled step, or the predicted step of a plan; `timed_ns`: the
    median step without the profiler. 0 if unknown. `no_ledger`: why it has no ledger, else empty."""

    letter: str
    name: str
    kind: RunKind
    subject: str
    state: str
    wall_ns: int
    timed_ns: int
    no_ledger: str
    figures: tuple[KeyFigure, ...]


class RunsComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two or more runs, each but the first compared with the first, the base.

    `facts`: the settings of the runs; `rows`: their ledgers side by side; `series`: the curves of each run. Of each run
    but the first: `comparisons`, as of `trainyard diff`, None if one of the two has no ledger; `findings` that appeared
    or went away; `plan_checks`, None unless one of the two is a plan.
    """

    schema: Literal["trainyard/runs-comparison/1"] = RUNS_COMPARISON_SCHEMA
    headline: str
    summary: str
    """The largest changes of accounts, or why there are none."""
    runs: tuple[RunColumn, ...]
    figures: tuple[KeyFigure, ...]
    facts: tuple[FactRow, ...]
    rows: tuple[LedgerRow, ...]
    comparisons: tuple[Comparison | None, ...]
    findings: tuple[tuple[FindingChange, ...], ...]
    plan_checks: tuple[PlanCheck | None, ...]
    series: tuple[RunSeries, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def base(self) -> RunColumn:
        """The run that the others are compared with."""
        return self.runs[0]
