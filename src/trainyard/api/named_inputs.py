"""Finds the trace, stored run or plans that an argument names: a path, or a run's folder, id prefix or tag."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.compare.side import Side
from trainyard.errors import BadFile, UnknownName, WrongRunState
from trainyard.job import SCRIPT, Job
from trainyard.record import Run
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.plans_file import read as read_plans
from trainyard.report.plans.plans_view import view_of_plans
from trainyard.report.render.by_suffix import Reported
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.build_analysis import analyse_measured, analyse_run
from trainyard.report.view.build_view import view_of
from trainyard.report.view.build_what_if import shared_replay, what_if_section
from trainyard.report.view.path_overlay import add_path
from trainyard.report.view.timeline import timeline
from trainyard.store.run_damage import RESTORE
from trainyard.store.store import Store
from trainyard.trace.measure import measure_files
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.operations.build_tree import build_operation_tree
from trainyard.trace.whatif.replay import Replay


class Named(NamedTuple):
    """The input that a name refers to. Either `plans`, or `measured` (traces), or `run` (a stored run), with its traces
    as `measured` if they were kept."""

    name: str
    measured: MeasuredTrace | None = None
    run: Run | None = None
    plans: Plans | None = None

    def side(self, with_operations: bool = False, jobs: Sequence[Job] = ()) -> Side:
        """This input as a side of a comparison. `with_operations`: with the operation tree of its traces. `jobs`: those
        it is compared with, whose layout selects one of several plans. Raises `WrongRunState` for a damaged run,
        `UnknownName` for one without a ledger."""
        if self.plans is not None:
            plan = self.plans.like(jobs).plan
            return Side(name=self.name, mean=plan.ledger, ledgers=(plan.ledger,), plan=plan)
        if self.run is not None and self.run.state == "damaged":
            raise WrongRunState(f"run {self.name} is damaged and cannot be compared: {self.run.failure}.", RESTORE)
        if self.measured is not None:
            events = tuple(rank.events for rank in self.measured.ranks)
            return Side(
                name=self.name, mean=self.measured.mean, ledgers=self.measured.ledgers, events=events, run=self.run,
                left_out=self.measured.damage,
                operations=build_operation_tree(self.measured) if with_operations else None,
            )  # fmt: skip
        if self.run is None or not self.run.ledgers:
            is_complete = self.run is not None and self.run.state == "complete"
            reason = (
                "It was asked for no profile, or too short for one."
                if is_complete
                else "It ended before its profile was booked."
            )
            raise UnknownName(f"run {self.name} holds no ledger.", reason)
        return Side(name=self.name, mean=self.run.ledgers[-1], ledgers=self.run.ledgers, run=self.run)

    @property
    def job(self) -> Job | None:
        """The job of a stored run; None for a script, for traces and for plans."""
        return self.run.job if self.run and self.run.job.workload != SCRIPT else None

    def compared(self, jobs: Sequence[Job] = ()) -> ComparedRun:
        """This input for a page that compares runs: without a ledger if it has none or is damaged. `jobs`: as in
        `side`."""
        try:
            side, no_ledger = self.side(with_operations=True, jobs=jobs), ""
        except (WrongRunState, UnknownName) as error:
            side, no_ledger = None, str(error)
        return ComparedRun(
            name=self.name, side=side, no_ledger=no_ledger, analysis=None if self.plans else self.analysis(),
            measured=self.measured, run=self.run, plans=self.plans,
        )  # fmt: skip

    def analysis(self, replay: Replay | None = None) -> Analysis:
        """The analysis of a stored run or of traces. `replay`: of the traces, if it is used elsewhere too. Raises
        `UnknownName` for plans."""
        if self.run is not None or self.measured is None:
            return analyse_run(self.stored(), self.measured, replay)
        return analyse_measured(self.measured, replay)

    def stored(self) -> Run:
        """The stored run. Raises `UnknownName` if there is none."""
        if self.run is None:
            raise UnknownName(f"{self.name} is no stored run.")
        return self.run

    def reported(self, draw: bool) -> Reported:
        """The data that a report is written from. `draw`: include the timeline, if there are traces."""
        if self.plans is not None:
            return Reported(view_of_plans(self.plans), ledgers=(self.plans.best.plan.ledger,))
        drawn = self.measured if draw else None
        replay = shared_replay(drawn) if drawn else None
        analysis = self.analysis(replay)
        source = self.run.id if self.run else "PATH"
        what_if = what_if_section(drawn, source=source, findings=analysis.findings, replay=replay) if drawn else None
        view = view_of(analysis, add_path(timeline(drawn), replay) if drawn else None, what_if)
        return Reported(view, ledgers=analysis.ledgers, measured=self.measured, run=self.run)


def find(name: str, strict: bool = False, *, say: Callable[[str], None]) -> Named:
    """Finds the input `name`: a file of plans, profiler files, which are measured, or a stored run. Raises
    `UnknownName` for a name that is neither a path nor a run, `BadFile` if no profiler file can be read or, with
    `strict`, if one is damaged. Unless `strict`, a run whose traces cannot be read is returned without them, and `say`
    is called with a message."""
    path = Path(name)
    if plans := read_plans(path):
        return Named(_short(path), plans=plans)
    if os.path.exists(path) and not (path / "run.json").is_file():
        return Named(_short(path), measured=measure_files([path], strict=strict))
    store = Store(say=say)
    run = store.load(name)
    measured = measure_run(store, run, store.find(name), strict=strict, say=say)
    shown_name = run.id if os.path.exists(path) or run.id.startswith(name) else name
    return Named(shown_name, measured=measured, run=run)


def measure_run(
    store: Store, run: Run, folder: Path, *, strict: bool = False, say: Callable[[str], None]
) -> MeasuredTrace | None:
    """The booked traces of a stored run in `folder`; None if it has none. Unless `strict`, damaged traces count as
    none, and `say` is called with a message."""
    traces = store.traces(folder, run)
    try:
        return measure_files(traces, source=run.id, axis=run.job.trace_axis, strict=strict) if traces else None
    except BadFile as error:
        if strict:
            raise
        say(f"{error} Run {run.id} is taken without its traces.")
        return None


def _short(path: Path) -> str:
    """The file's name without `.json` and `.gz`."""
    return path.name.removesuffix(".gz").removesuffix(".json")
