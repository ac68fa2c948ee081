"""The result of an analysis, as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.finding import Finding
from trainyard.ledger import Ledger
from trainyard.report.view.charts import Charts
from trainyard.report.view.view import KernelRow, KeyFigure, Table
from trainyard.trace.flops.coverage import FormulaCoverage
from trainyard.trace.step_overview import StepOverview

ANALYSIS_SCHEMA = "trainyard/analysis/2"


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The ledgers of profiler files or of a stored run, with the findings of all rules.

    Times are integer ns. Texts may contain names from traces: escape them before rendering.
    """

    schema: Literal["trainyard/analysis/2"] = ANALYSIS_SCHEMA
    headline: str
    """The largest avoidable cost, or that no rule finds one."""
    subject: str
    """Device, ranks and backend of a trace; job, devices, layout and recipe of a run."""
    source: str
    """The trace, or `run ID`."""
    state: str = ""
    """The state of a stored run."""
    ledgers: tuple[Ledger, ...]
    """One for each rank and step, then the mean."""
    findings: tuple[Finding, ...]
    """Sorted by recoverable time times confidence."""
    figures: tuple[KeyFigure, ...]
    ideal: tuple[int, str] | None = None
    """(ns, rate): the time of the step's model FLOPs at the best known rate, and a description of that rate."""
    kernels: tuple[KernelRow, ...] = ()
    """Kernels by time, the longest 30."""
    modules: tuple[KernelRow, ...] = ()
    """Modules by the time of the kernels launched from them, the longest 30."""
    steps: StepOverview | None = None
    """How the window of a trace divides into steps, and the parts that its mean leaves out."""
    formulas: FormulaCoverage | None = None
    """How much of the compute time has known FLOPs and bytes, and which ops have none."""
    tables: tuple[Table, ...] = ()
    """Idle time, host operations, bandwidths, arrival at collectives, roofline, ..., as far as they are known."""
    charts: Charts = Charts()
    """Series of a run, roofline, bus bandwidth, pipeline schedule and goodput, as far as they are known."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Dropped and unknown events, and how the ledgers were computed."""
    limits: tuple[str, ...] = ()
    """What such a ledger cannot show."""

    @property
    def mean(self) -> Ledger:
        """The mean over ranks and full steps; empty if nothing was profiled."""
        return self.ledgers[-1] if self.ledgers else Ledger(wall_ns=0, entries=(), source=self.source)

    def __str__(self) -> str:
        """The analysis as the terminal prints it, in 80 columns, without colours."""
        from trainyard.report.render.plain_text import analysis_text

        return analysis_text(self)

    def _repr_html_(self) -> str:
        """The report page as a frame of a notebook."""
        from trainyard.report.render.html import notebook_frame
        from trainyard.report.view.build_view import view_of

        return notebook_frame(view_of(self))
