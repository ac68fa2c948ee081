"""Writes docs/schemas: a JSON Schema of each document that a command prints with --json, from the types.

    python docs/schemas.py

The name and version of a document are in its field `schema`. A test fails when a file differs from the types.
"""

import json
from inspect import cleandoc
from pathlib import Path
from typing import Any

import msgspec

from trainyard.error_report import ErrorReport
from trainyard.hangs.verdict import HangAnalysis
from trainyard.ledger import Ledgers
from trainyard.numerics.bisect.bisection_result import NumericsBisection
from trainyard.numerics.kernels.check_result import KernelCheck
from trainyard.numerics.record.record_command import RecordReport
from trainyard.numerics.reproduce.reproduce_difference import Reproducer
from trainyard.numerics.triage.triage_result import Triage
from trainyard.report.comparison.runs_comparison import RunsComparison
from trainyard.report.gate.gate_report import (
    BisectReport,
    ConvergenceReport,
    GateReport,
    ReferenceReport,
    SelfCheckReport,
    StoredCurves,
)
from trainyard.report.history.history_report import HistoryReport
from trainyard.report.numerics.devices_report import DevicesReport
from trainyard.report.numerics.numerics_report import NumericsReport
from trainyard.report.plans.catalogue import Catalogue
from trainyard.report.plans.design_comparison import DesignComparison
from trainyard.report.plans.measured_plans import MeasuredPlans
from trainyard.report.plans.plans_file import Plans
from trainyard.report.plans.probe_results import FittedMachine, ProbedMachine
from trainyard.report.plans.rollout_plan import RolloutPlan
from trainyard.report.render.written_report import WrittenReport
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.comparison import Comparison
from trainyard.report.view.critical_path import CriticalPath
from trainyard.report.view.parity_results import ParityResults
from trainyard.report.view.run_result import RunResult
from trainyard.report.view.trace_results import MemorySnapshot, QueryResult, Reconciliation, WhatIf
from trainyard.run.chaos.experiment import ChaosScore
from trainyard.run.launches.launch_record import LaunchList, LaunchLogs, LaunchReport, RenderedLaunch
from trainyard.run.live_run import LiveRun
from trainyard.run.parts.part import Part
from trainyard.serve.served_address import ServedAddress
from trainyard.store.stored_changes import CopiedRuns, DeletedRun, ExportedWeights, RunList, RunTag

FOLDER = Path(__file__).parent / "schemas"
DOCUMENTS: dict[str, type] = {
    "analysis": Analysis,  # trainyard trace, trainyard demo
    "what-if": WhatIf,  # trainyard trace what-if
    "critical-path": CriticalPath,  # trainyard trace critical-path
    "sql": QueryResult,  # trainyard trace sql
    "reconcile": Reconciliation,  # trainyard trace reconcile
    "hangs": HangAnalysis,  # trainyard trace hangs
    "memory": MemorySnapshot,  # trainyard trace memory
    "ledgers": Ledgers,  # ledgers.json of a run
    "comparison": Comparison,  # trainyard diff
    "runs-comparison": RunsComparison,  # trainyard report RUN RUN... --out FILE.json
    "gate": GateReport,  # trainyard gate, trainyard gate run
    "bisect": BisectReport,  # trainyard gate bisect
    "self-check": SelfCheckReport,  # trainyard gate self-check
    "convergence": ConvergenceReport,  # trainyard gate convergence
    "golden-stored": StoredCurves,  # trainyard gate convergence --store-golden
    "points": ReferenceReport,  # trainyard gate convergence --mllog
    "history": HistoryReport,  # trainyard history
    "plans": Plans,  # trainyard plan, trainyard plan check
    "measured-plans": MeasuredPlans,  # trainyard plan measure
    "designs": DesignComparison,  # trainyard plan design
    "rollout": RolloutPlan,  # trainyard plan rollout
    "catalogue": Catalogue,  # trainyard plan list
    "machine": ProbedMachine,  # trainyard probe
    "fit": FittedMachine,  # trainyard probe fit
    "run": RunResult,  # trainyard run, its modes, trainyard runs show, trainyard runs join
    "live-run": LiveRun,  # trainyard runs watch: a document for each update
    "part": Part,  # part.json in a node's run folder, of a run on several nodes
    "chaos": ChaosScore,  # chaos.json of a run with injected faults
    "launch": LaunchReport,  # trainyard launch, trainyard launch status LAUNCH, trainyard launch cancel
    "launches": LaunchList,  # trainyard launch status
    "launch-files": RenderedLaunch,  # trainyard launch render
    "launch-logs": LaunchLogs,  # trainyard launch logs
    "numerics-comparison": NumericsReport,  # trainyard numerics compare
    "numerics-bisection": NumericsBisection,  # trainyard numerics bisect
    "numerics-devices": DevicesReport,  # trainyard numerics devices
    "numerics-kernels": KernelCheck,  # trainyard numerics kernels
    "numerics-record": RecordReport,  # trainyard numerics record
    "numerics-reproducer": Reproducer,  # trainyard numerics reproduce
    "numerics-triage": Triage,  # trainyard numerics triage
    "parity": ParityResults,  # trainyard numerics parity
    "report": WrittenReport,  # trainyard report
    "runs": RunList,  # trainyard runs
    "run-tag": RunTag,  # trainyard runs tag, trainyard runs untag
    "weights": ExportedWeights,  # trainyard runs export-weights
    "copied": CopiedRuns,  # trainyard runs push, trainyard runs pull
    "deleted-run": DeletedRun,  # trainyard runs delete
    "serve": ServedAddress,  # trainyard serve
    "error": ErrorReport,  # any command that fails
}


def schema_of(document: type) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document."""
    described = msgspec.json.schema(document, schema_hook=lambda _: {"type": "string"})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **without_indentation(described)}


def without_indentation(schema: Any) -> Any:
    """`schema` with descriptions that are not indented as in the source, which Python 3.13 leaves out of docstrings and
    earlier versions keep."""
    if isinstance(schema, dict):
        return {
            key: cleandoc(value) if key == "description" and isinstance(value, str) else without_indentation(value)
            for key, value in schema.items()
        }
    return [without_indentation(item) for item in schema] if isinstance(schema, list) else schema


def render() -> dict[Path, str]:
    """The text of each file."""
    return {
        FOLDER / f"{name}.json": json.dumps(schema_of(document), indent=1, ensure_ascii=False) + "\n"
        for name, document in DOCUMENTS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in render().items():
        path.write_text(text, "utf-8")
        print(f"{path.relative_to(Path.cwd())} is written.")
