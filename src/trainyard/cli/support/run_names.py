"""Resolve names on the command line: a trace path, a run's folder, an id prefix or a tag."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from trainyard.cli.support.output import say
from trainyard.compare.side import Side
from trainyard.errors import BadFile, UnknownName, WrongRunState
from trainyard.record import Run
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.plans_file import read as read_plans
from trainyard.report.plans.plans_view import view_of_plans
from trainyard.report.render.by_suffix import Reported
from trainyard.report.view.build_analysis import analyse_measured, analyse_run
from trainyard.report.view.build_view import view_of
from trainyard.report.view.timeline import timeline
from trainyard.store.run_damage import RESTORE
from trainyard.store.store import Store
from trainyard.trace.measure import measure_files
from trainyard.trace.measured_trace import MeasuredTrace


class Named(NamedTuple):
    """What a name refers to: traces, a stored run with its traces if it has any, or plans."""

    name: str
    measured: MeasuredTrace | None = None
    run: Run | None = None
    plans: Plans | None = None

    def side(self) -> Side:
        if self.plans is not None:
            plan = self.plans.best.plan
            return Side(self.name, plan.ledger, (plan.ledger,), plan=plan)
        if self.run is not None and self.run.state == "damaged":
            raise WrongRunState(f"run {self.name} is damaged and cannot be compared: {self.run.failure}.", RESTORE)
        if self.measured is not None:
            events = tuple(rank.events for rank in self.measured.ranks)
            mean, ledgers = self.measured.mean, self.measured.ledgers
            return Side(self.name, mean, ledgers, events, self.run, left_out=self.measured.damage)
        if self.run is None or not self.run.ledgers:
            complete = self.run is not None and self.run.state == "complete"
            reason = (
                "It was run without a profile, or was too short for one."
                if complete
                else "It ended before its profile was booked."
            )
            raise UnknownName(f"run {self.name} has no ledger.", reason)
        return Side(self.name, self.run.ledgers[-1], self.run.ledgers, (), self.run)

    def stored(self) -> Run:
        if self.run is None:
            raise UnknownName(f"{self.name} is not a stored run.")
        return self.run

    def reported(self, draw: bool) -> Reported:
        """The content of a report; `draw`: include the timeline."""
        if self.plans is not None:
            return Reported(view_of_plans(self.plans), (self.plans.best.plan.ledger,))
        if self.run is not None or self.measured is None:
            analysis = analyse_run(self.stored(), self.measured)
        else:
            analysis = analyse_measured(self.measured)
        view = view_of(analysis, timeline(self.measured) if draw and self.measured else None)
        return Reported(view, analysis.ledgers, self.measured, self.run)


def find(name: str, strict: bool = False) -> Named:
    """Load what a name refers to; of a file of plans, the first and fastest one.

    Raises `UnknownName` if it is neither a path nor a run. Unless `strict`, a run with damaged traces is loaded without
    them."""
    path = Path(name)
    if plans := read_plans(path):
        return Named(_short(path), plans=plans)
    if os.path.exists(path) and not (path / "run.json").is_file():
        return Named(_short(path), measured=measure_files([path], strict=strict))
    store = Store(say=say)
    folder = store.find(name)
    run = store.load(name)
    traces = store.traces(folder, run)
    try:
        axis = run.job.layout.only_axis
        measured = measure_files(traces, source=run.id, axis=axis, strict=strict) if traces else None
    except BadFile as error:
        if strict:
            raise
        say(f"{error} Run {run.id} is used without its traces.")
        measured = None
    return Named(run.id if os.path.exists(path) or run.id.startswith(name) else name, measured, run)


def _short(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")
