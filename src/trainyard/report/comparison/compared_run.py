"""The input of a page that compares runs: a stored run, traces, or plans, with all that is known of each."""

from __future__ import annotations

from typing import Literal, NamedTuple

from trainyard.compare.side import Side
from trainyard.record import Run
from trainyard.report.plans.plans_file import Plans
from trainyard.report.view.analysis import Analysis
from trainyard.trace.measured_trace import MeasuredTrace

RunKind = Literal["run", "trace", "plan"]


class ComparedRun(NamedTuple):
    """A compared run, trace or plan. `side`: its ledgers and events; None if it has no ledger or is damaged, for the
    reason in `no_ledger`. `analysis`: None for plans. `measured`: the booked traces, `run`: the stored run, `plans`:
    the plans, each if there is one."""

    name: str
    side: Side | None
    no_ledger: str = ""
    analysis: Analysis | None = None
    measured: MeasuredTrace | None = None
    run: Run | None = None
    plans: Plans | None = None

    @property
    def kind(self) -> RunKind:
        return "plan" if self.plans else "run" if self.run else "trace"

    def renamed(self, name: str) -> ComparedRun:
        """The same run under another name."""
        return self._replace(name=name, side=self.side._replace(name=name) if self.side else None)
