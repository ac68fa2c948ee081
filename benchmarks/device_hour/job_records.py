"""Records of a stored run: its figures, ledger and plan, one trimmed trace; of one run also the whole folder."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks import scrub
from benchmarks.collect import LOG_END, Session, size_of
from benchmarks.trim import trim
from trainyard import job_file, ledger
from trainyard.errors import BadInput, TrainyardError
from trainyard.machine import find_machine
from trainyard.record import Run
from trainyard.report.view.analysis import Analysis
from trainyard.store import run_folder as folders
from trainyard.store.run_summary import summarise
from trainyard.store.store import Store
from trainyard.units import show_count, show_size, show_time

HEAD = """| job | ended | step | planned | tokens/s | MFU | peak memory | planned | unrecognised | loss | trace |
|---|---|---|---|---|---|---|---|---|---|---|
"""
README_BYTES = 10_000
"""Bytes kept back for README.md."""


class PlannedStep(NamedTuple):
    """What the planner predicts for a job: the step in ns, its 80 % interval, and peak bytes on a device."""

    step_ns: int
    low_ns: int
    high_ns: int
    memory_bytes: int


def newest(session: Session) -> tuple[Path, Run]:
    """The newest stored run and its folder, which is rewritten without private data. Raises `TrainyardError`."""
    store = Store(session.store)
    whole = store.runs / store.rows()[0].id
    return whole, folders.write(whole, scrub.clean_run(folders.read(whole)))


def record(session: Session, name: str, device: str, max_bytes: int) -> str:
    """Write the records of the newest run to the folder `name`, with a trace of at most `max_bytes` bytes. Returns the
    row of the table `HEAD`."""
    whole, run = newest(session)
    summary, mean = summarise(run), run.ledgers[-1]
    session.keep(f"{name}/summary.json", json.dumps(msgspec.to_builtins(summary), indent=1) + "\n")
    session.keep(f"{name}/ledger.json", ledger.to_json([mean]).decode())
    planned, why = plan(session, run, name, device)
    kept = keep_trace(session, whole / run.trace[0], f"{name}/trace.json.gz", max_bytes) if run.trace else "no trace"
    cells = (
        name,
        "ran",
        show_time(summary.step_ns),
        f"{show_time(planned.step_ns)} ({show_time(planned.low_ns)} to {show_time(planned.high_ns)})"
        if planned
        else why,
        show_count(summary.tokens_per_s),
        f"{100 * summary.mfu.value:.1f} %" if summary.mfu else summary.no_mfu,
        show_size(summary.memory_bytes),
        show_size(planned.memory_bytes) if planned else "",
        f"{mean.unrecognised_ns / max(1, mean.wall_ns):.2%}",
        f"{summary.loss_first or 0.0:.3f} to {summary.loss_last or 0.0:.3f}",
        kept,
    )
    return f"| {' | '.join(cells)} |\n"


def row_without_run(name: str, ended: str) -> str:
    """The row of a job that did not run."""
    return f"| {name} | {ended} |" + " |" * 9 + "\n"


def plan(session: Session, run: Run, name: str, device: str) -> tuple[PlannedStep | None, str]:
    """The planner's prediction for the job of a run, which is kept next to it, or None and why there is none."""
    machine = find_machine(device)
    if machine is None:
        return None, "the device is not known"
    path = session.store.with_name("planned.toml")
    path.write_text(job_file.write(run.job), "utf-8")
    try:
        text = session.must("plan", "check", str(path), "--machine", machine.name, "--json")
    except TrainyardError as error:
        session.keep(f"{name}/plan.txt", str(error))
        return None, "see plan.txt"
    choice: dict[str, Any] = json.loads(text)["choices"][0]
    session.keep(f"{name}/plan.json", json.dumps(choice) + "\n")
    predicted = choice["plan"]
    memory_bytes = sum(predicted["memory"].values())
    return PlannedStep(predicted["ledger"]["wall_ns"], predicted["low"], predicted["high"], memory_bytes), ""


def keep_trace(session: Session, trace: Path, name: str, max_bytes: int) -> str:
    """Keep one step of a trace in at most `max_bytes` bytes. Returns whether its ledger is that of the whole trace."""
    try:
        trimmed = trim(trace, max_bytes)
    except BadInput as error:
        return f"too large: {error.message}"
    (session.folder / name).write_bytes(trimmed.data)
    return "same ledger" if trimmed.same else "context or framework ops had to go"


def record_whole_run(session: Session, name: str) -> None:
    """Keep the newest run's folder without its raw traces and what only a resumed run reads (which names the host), its
    page, and the analysis of the trimmed trace."""
    whole, _ = newest(session)
    folder = session.folder / name / "run"
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("traces", "logs", "*.matmul.json"))
    for path in folder.rglob("*.json*"):
        path.write_text(scrub.clean(path.read_text("utf-8"), session.hidden), "utf-8")
    for path in (whole / "logs").rglob("*.*"):
        session.keep(f"{name}/run/logs/{path.name}", path.read_text("utf-8", "replace")[-LOG_END:])
    page = session.folder / name / "report.html"
    session.must("report", str(whole), "--out", str(page))
    page.with_name("report.html.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    page.unlink()
    trace = session.folder / name / "trace.json.gz"
    if trace.exists():
        output = session.must("trace", str(trace), "--json")
        msgspec.json.decode(output, type=Analysis, dec_hook=ledger.decode_hook)  # refuses ledgers that do not balance
        session.keep(f"{name}/analysis.json", output)


def bytes_left(session: Session, jobs: int) -> int:
    """Bytes for the trace of the next of `jobs` jobs."""
    return max(0, session.max_bytes - README_BYTES - size_of(session.folder)) // max(1, jobs) // 2
