"""Runs the device tests and the largest dense job that fits, and keeps small records of both."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks import dense, scrub
from benchmarks.trim import Trimmed, trim
from trainyard.errors import TrainyardError
from trainyard.job import Job
from trainyard.ledger import decode_hook
from trainyard.record import Run
from trainyard.report.view.analysis import Analysis
from trainyard.report.view.key_figures import shares_of_run
from trainyard.store import run_folder as folders
from trainyard.store.run_summary import summarise
from trainyard.units import show_count, show_size, show_time

ROOT = Path(__file__).parents[1]
LIMIT = 2_000_000
README_ROOM = 20_000
WHOLE_S, TESTS_S, JOB_S, RECORDS_S = 400.0, 140.0, 190.0, 40.0
"""Seconds at most: for everything, for the tests, for a job by its own estimate, and kept back for the records."""
LOG_END = 20_000
"""Bytes kept of the end of each log."""
_FULL = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)


class Tried(NamedTuple):
    """A job that was started, by its arithmetic, and how it ended."""

    job: Job
    arithmetic: str
    ended: str

    def __str__(self) -> str:
        return f"{self.job.decoder.name}: {self.arithmetic}: {self.ended}"


class Session:
    """One making of evidence, in `place`; `store` is thrown away. Nothing starts after the deadline."""

    def __init__(self, place: Path, store: Path) -> None:
        self.place = place
        self.store = store
        self.deadline = time.monotonic() + WHOLE_S
        self.hidden = scrub.private()

    def tests(self, where: str = "tests/device") -> str:
        """How the device tests ended, in pytest's words; what they printed is kept. Empty unless all is well."""
        # Plugins that happen to be installed stay out; the settings file names this one's option.
        plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TRAINYARD_STORE": str(self.store / "tests")}
        words = ["-p", "pytest_timeout", "-p", "no:cacheprovider", "-rA", "-m", "device", where]
        done = self._call([sys.executable, "-m", "pytest", *words], TESTS_S, **plain)
        output = done.stdout + done.stderr
        self.keep("tests.txt", output)
        last = done.stdout.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(f"device tests: {last[0]}", flush=True)
        return last[0] if done.returncode == 0 and re.search(r"\b[1-9]\d* passed", last[0]) else ""

    def largest_job(self, jobs: Sequence[tuple[Job, str]]) -> list[Tried]:
        """The jobs in turn until one runs, which is then the last; only one too large is followed by another."""
        tried: list[Tried] = []
        for job, arithmetic in jobs:
            print(f"{job.decoder.name}: {arithmetic}", flush=True)
            path = self.place / "job.toml"
            size = dense.Size(job.decoder.layers, job.decoder.hidden_size)
            path.write_text(dense.job_text(size, job.layout.ranks), "utf-8")
            done = self.trainyard("run", str(path), limit=self.deadline - time.monotonic() - RECORDS_S)
            self.keep("run.txt", done.stdout if done.returncode == 0 else done.stdout + done.stderr)
            path.unlink()  # the run folder has it
            full = done.returncode != 0 and _FULL.search(done.stdout + done.stderr)
            ended = "ran" if done.returncode == 0 else "out of memory" if full else f"exit code {done.returncode}"
            tried.append(Tried(job, arithmetic, ended))
            print(f"{job.decoder.name}: {ended}", flush=True)
            if not full:
                break
        return tried

    def records(self) -> tuple[Run, Trimmed]:
        """The run's folder, its page, one trimmed trace and the ledger read back from that. Raises `BadInput`."""
        whole = next(path for path in (self.store / "runs").iterdir() if folders.read_head(path).state == "complete")
        run = folders.write(whole, scrub.clean_run(folders.read(whole)))
        shutil.copytree(whole, self.place / "run", ignore=shutil.ignore_patterns("traces", "logs"))
        for path in (self.place / "run").rglob("*.json*"):
            path.write_text(scrub.clean(path.read_text("utf-8"), self.hidden), "utf-8")
        for path in (whole / "logs").rglob("*.*"):
            self.keep(f"run/logs/{path.name}", path.read_text("utf-8", "replace")[-LOG_END:])
        self.keep("machine.json", json.dumps(_machine(run), indent=1) + "\n")
        self._must("report", str(whole), "--out", str(self.place / "report.html"))
        trimmed = trim(whole / run.trace[0], LIMIT - README_ROOM - size_of(self.place))
        (self.place / "trace.json.gz").write_bytes(trimmed.data)
        output = self._must("trace", str(self.place / "trace.json.gz"), "--json")
        msgspec.json.decode(output, type=Analysis, dec_hook=decode_hook)  # refuses ledgers that do not balance
        self.keep("ledger.json", output)
        return run, trimmed

    def keep(self, name: str, text: str) -> None:
        """`text` as a record, without what is private."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(scrub.clean(text, self.hidden), "utf-8")

    def trainyard(self, *args: str, limit: float) -> subprocess.CompletedProcess[str]:
        return self._call([sys.executable, "-m", "trainyard.cli.main", *args], limit, TRAINYARD_STORE=str(self.store))

    def _must(self, *args: str) -> str:
        done = self.trainyard(*args, limit=60)
        if done.returncode:
            raise TrainyardError(f"trainyard {args[0]} ends with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _call(self, command: Sequence[str], limit: float, **env: str) -> subprocess.CompletedProcess[str]:
        """Its ranks end with it. Out of time is exit code 124, as `timeout` says it."""
        limit = max(1.0, min(limit, self.deadline - time.monotonic()))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, start_new_session=True, **pipes) as process:
            try:
                out, err = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # a run that pytest started too; ranks die with their run
                out, err = process.communicate()
                return subprocess.CompletedProcess(command, 124, out, f"{err}\nno end after {limit:.0f} s")
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def collect(names: Sequence[str], memory: int) -> int:
    """Everything, for devices of these names and at least this memory (bytes); the exit code."""
    slug = re.sub(r"[^a-z0-9]+", "-", names[0].lower()).strip("-")
    place = ROOT / "evidence" / f"{slug}-{datetime.now(UTC):%Y-%m-%d}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(place, Path(folder))
        tested = session.tests()
        jobs = list(dense.fitting(len(names), memory, dense.peak_of(names[0]), JOB_S))
        tried = session.largest_job(jobs)
        if not tried or tried[-1].ended != "ran":
            print(f"No job ran; {place.relative_to(ROOT)}/run.txt has the last one's words.", file=sys.stderr)
            return 1
        try:
            run, trimmed = session.records()
        except TrainyardError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
    session.keep("README.md", readme(names, tested, tried, run, trimmed))
    return 0 if sound(place, session) and tested else 1


def sound(place: Path, session: Session) -> bool:
    """Says how large the records are, and what is wrong with them."""
    size, leaks = size_of(place), list(scrub.leaks(place, session.hidden))
    print(f"{place.name}: {size / 1e6:.2f} MB")
    if size > LIMIT:
        print(f"That is more than {LIMIT / 1e6:.0f} MB: something there is not small.", file=sys.stderr)
    for leak in leaks:
        print(f"Do not publish this: {leak}", file=sys.stderr)
    return size <= LIMIT and not leaks


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _machine(run: Run) -> dict[str, object]:
    about = run.provenance
    return {
        "devices": msgspec.to_builtins(about.devices),
        "driver": about.driver,
        "torch": {name: value for name, value in about.torch_build.items() if name not in ("config", "parallel")},
        "packages": about.packages,
        "clocks": about.clocks,
        "host": about.host,
    }


def readme(names: Sequence[str], tested: str, tried: Sequence[Tried], run: Run, trimmed: Trimmed) -> str:
    """What the records are, the few figures one looks for first, and how to check them."""
    summary, mean = summarise(run), run.ledgers[-1]
    torch = run.provenance.torch_build.get("version", "unknown")
    figures = [
        ("step", show_time(summary.step_ns)),
        ("tokens/s", show_count(summary.tokens_per_s)),
        *((share.label, f"{share.value} %: {share.calculation}") for share in shares_of_run(run)),
        ("peak memory", show_size(summary.memory_bytes)),
        ("coverage", f"{1 - mean.unrecognised_ns / max(1, mean.wall_ns):.2%}"),
        ("profiler's cost", show_time(summary.profiler_ns or 0) + " a step"),
        ("loss", f"{summary.loss_first:.3f} to {summary.loss_last:.3f}"),
    ]
    same = (
        "its ledger is that of the step in the whole trace"
        if trimmed.same
        else "its ledger differs from the untrimmed one: context or framework ops had to go"
    )
    return "\n".join(
        [
            f"# {len(names)} x {names[0]}, {run.started[:10]}",
            "",
            f"Written by `make device-evidence`: torch {torch}, trainyard {run.provenance.packages.get('trainyard')}.",
            "",
            f"Device tests: {tested or 'not all passed, see tests.txt'}.",
            "",
            "The largest dense job that fits, and what was tried for it:",
            "",
            *(f"- {attempt}" for attempt in tried),
            "",
            *("| | |", "|---|---|"),
            *(f"| {name} | {value} |" for name, value in figures),
            "",
            *("| file | what |", "|---|---|"),
            "| run/ | the run's folder, without its raw traces |",
            "| run.txt | what `trainyard run` printed |",
            "| report.html | its page |",
            f"| trace.json.gz | one step of rank 0, trimmed; {same} |",
            "| ledger.json | what `trainyard trace trace.json.gz --json` prints |",
            "| tests.txt | the device tests |",
            "| machine.json | devices, driver, clocks, versions |",
            "",
            "Host names, folders and secrets were taken out. To check: `trainyard trace trace.json.gz`,",
            "`trainyard diff run <another run>`.",
            "",
        ]
    )
