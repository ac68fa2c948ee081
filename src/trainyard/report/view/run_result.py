"""A stored run with everything that a report shows of it, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainyard import renamed_keys
from trainyard.error_report import ErrorReport
from trainyard.errors import BadFile
from trainyard.finding import Finding
from trainyard.formats.decoding import UNREADABLE
from trainyard.formats.regular_files import read_bytes
from trainyard.record import Run
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.build_analysis import analyse_run
from trainyard.report.view.view import KernelRow, KeyFigure, Table
from trainyard.run.chaos import chaos_files
from trainyard.run.chaos.experiment import ChaosScore
from trainyard.store.run_summary import Summary, summarise
from trainyard.trace.flops.coverage import FormulaCoverage
from trainyard.trace.measured_trace import MeasuredTrace

_ONLY_IN_ANALYSIS = ("headline", "subject", "findings", "figures", "ideal", "kernels", "modules", "formulas", "tables",
                     "warnings", "notes", "limits")  # fmt: skip


class RunResult(Run, frozen=True, kw_only=True, omit_defaults=False):
    """A run's record, its folder, a summary of its figures, and the analysis of its ledgers.

    The fields from `headline` to `limits` are those of `trainyard.analyse`. Times are integer ns.
    """

    folder: str
    summary: Summary
    headline: str
    subject: str
    findings: tuple[Finding, ...] = ()
    figures: tuple[KeyFigure, ...] = ()
    ideal: tuple[int, str] | None = None
    kernels: tuple[KernelRow, ...] = ()
    modules: tuple[KernelRow, ...] = ()
    formulas: FormulaCoverage | None = None
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Files of the run that are not in its folder any more."""
    chaos: ChaosScore | None = None
    """The score of a run with injected faults."""
    error: ErrorReport | None = None
    """Why a run with injected faults did not recover."""

    @property
    def analysis(self) -> Analysis:
        """The ledgers and findings as `trainyard.analyse` returns them."""
        fields = {name: getattr(self, name) for name in _ONLY_IN_ANALYSIS}
        return Analysis(source=f"run {self.id}", state=self.state, ledgers=self.ledgers, **fields)

    def _repr_html_(self) -> str:
        """The report page as a frame of a notebook."""
        return self.analysis._repr_html_()


def result_of_run(
    run: Run,
    folder: Path,
    measured: MeasuredTrace | None = None,
    *,
    missing: Sequence[str] = (),
    error: ErrorReport | None = None,
) -> RunResult:
    """The result of a run in any state. `measured`: its traces, which add kernels, modules and tables. `missing`,
    `error`: as in `RunResult`."""
    analysis = analyse_run(run, measured)
    return RunResult(
        **{name: getattr(run, name) for name in Run.__struct_fields__},
        **{name: getattr(analysis, name) for name in _ONLY_IN_ANALYSIS},
        folder=str(folder),
        summary=summarise(run),
        missing=tuple(missing),
        chaos=_read_score(folder),
        error=error,
    )


def _read_score(folder: Path) -> ChaosScore | None:
    """The score of a chaos experiment; None if there is none that can be read."""
    try:
        document = msgspec.json.decode(read_bytes(folder / chaos_files.SCORE))
        return msgspec.convert(renamed_keys.upgraded_chaos(document), ChaosScore)
    except (BadFile, *UNREADABLE):
        return None
