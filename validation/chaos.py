"""Repeated fault-injection trials, each fault at three random steps: `python -m validation.chaos` (`make chaos`).

Each trial is a run of examples/chaos.toml with one fault; a delayed rank sleeps twice as long as its steps take. A
finished trial is a line of out/chaos.jsonl and is not repeated, so that the trials can be interrupted and resumed. The
runs are stored in out/chaos; runs that recovered as expected are removed.

`--runs N`: trials of each fault at each step (10). `--only KIND`: trials of one fault. `--write`: no trials; write
docs/chaos.md from the finished ones.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec

from trainyard import job_file as jobs
from trainyard import words
from trainyard.errors import TrainyardError
from trainyard.job import Job
from trainyard.run.chaos import experiment
from trainyard.run.chaos.fault_plan import Fault, FaultPlan
from trainyard.run.chaos.score_recovery import FaultScore
from trainyard.run.local.harness import execute
from trainyard.run.session import Session
from trainyard.store.store import Store

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "chaos.toml"
TRIALS = ROOT / "out" / "chaos.jsonl"
STORE = ROOT / "out" / "chaos"
PAGE = ROOT / "docs" / "chaos.md"
STEPS = 3
SEED = 1906
ROOM = 45
"""Steps after a fault: a slow rank is detected in three windows of eight steps, and every fault needs time to show."""
DELAY = 200.0
CALM = "calm"
HEAD = """# Chaos

How jobs recover from injected faults. Each trial trains `examples/chaos.toml` (two ranks on two nodes, a
checkpoint every {every} steps, `hang_timeout_s = {hang:g}`, backend {backend}) and injects one fault before one of
three steps chosen at random; then the losses of every step after the fault, including repeated steps, are compared
with those of a run without faults. `make chaos` runs the missing trials, `python -m validation.chaos --write` writes
this page, and `trainyard run chaos PLAN.toml JOB.toml` does the same for your own job.

{count} trials, last on {date}, with torch {torch}, Python {python}, on {cores} cores{load}.

"""
NOTES = """
Recovered or failed: the job completed, or reported the cause of its failure and kept its results. Culprit: the kind of
fault and its rank or node, as the run's incidents name them; a damaged checkpoint has no culprit. False alarms:
incidents without a matching fault. Recovery: the median time from the fault until all ranks trained again; for a
pre-empted and restarted job, without loading torch. A full disk and a slow rank do not stop the job: for these it is
the time until detection.

"""


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Trial `number` of a fault at a step. `load`: of the machine at its start. `error`: the reason if there is no
    `row`. `strays`: false alarms. `backend`: that of the ranks' collectives."""

    kind: str
    step: int
    number: int
    seconds: float
    load: float
    when: str
    run: str = ""
    row: FaultScore | None = None
    strays: tuple[str, ...] = ()
    error: str = ""
    backend: str = "gloo"

    @property
    def key(self) -> tuple[str, int, int]:
        return self.kind, self.step, self.number

    @property
    def expected(self) -> bool:
        """Whether the job recovered, or failed as it should."""
        return self.row is not None and self.row.outcome in ("recovered", "failed")

    @property
    def recovery_s(self) -> float | None:
        """Seconds from the fault to the recovery; None if the job did not recover or the fault was not noticed."""
        if self.row is None or self.row.outcome != "recovered" or not self.row.blamed:
            return None
        return self.row.detect_s + self.row.restart_s - self.row.import_s


def wanted(job: Job, runs: int, kinds: Iterable[str]) -> Iterator[tuple[Fault, int]]:
    """(fault, number): every fault once before any is repeated. The steps do not depend on the arguments."""
    steps = {kind: _steps(kind, job) for kind in words.INJECTIONS}
    for number in range(runs):
        for index in range(STEPS):
            for kind in kinds:
                strikes = words.INJECTIONS[kind].strikes
                target = {} if strikes == "job" else {strikes: (index + number) % 2}
                amount = DELAY if kind == "delay" else 0.0
                yield Fault(kind=kind, step=steps[kind][index], amount=amount, **target), number


def _steps(kind: str, job: Job) -> list[int]:
    chance = random.Random(f"{SEED} {kind}")  # noqa: S311 - nothing secret
    return sorted(chance.sample(range(job.checkpoint.interval, job.measure.in_all - ROOM), STEPS))


def read() -> list[Trial]:
    """The finished trials; lines truncated by an interruption are skipped."""
    trials: list[Trial] = []
    for line in TRIALS.read_bytes().splitlines() if TRIALS.exists() else ():
        try:
            trials.append(msgspec.json.decode(line, type=Trial))
        except msgspec.MsgspecError:
            continue
    return trials


def calm(job: Job, text: str, store: Store) -> str:
    """Id of the reference run without faults, trained once."""
    tagged = {tag: row for row in store.rows() for tag in row.tags}
    if CALM in tagged and tagged[CALM].state == "complete":
        try:
            return experiment.comparable(store.load(CALM), job).id
        except TrainyardError:
            store.untag(CALM)
    run = execute(job, text, Session(store, lambda _: []))
    store.tag(run.id, CALM)
    return run.id


def run_trial(job: Job, text: str, fault: Fault, number: int, store: Store, against: str) -> Trial:
    began, load = time.monotonic(), os.getloadavg()[0]
    run, row, alarms, error, backend = "", None, (), "", "gloo"
    try:
        result = experiment.execute(job, text, FaultPlan(fault=(fault,)), Session(store, lambda _: []), against=against)
        run, (row,) = result.run.id, result.score.faults
        backend = result.score.backend or backend
        alarms = tuple(f"{alarm.kind} of rank {alarm.rank}, node {alarm.node}" for alarm in result.score.unplanned)
        if row.correct and not alarms:
            store.delete(run)
    except TrainyardError as failure:
        error = str(failure)
    return Trial(
        kind=fault.kind,
        step=fault.step,
        number=number,
        seconds=round(time.monotonic() - began, 1),
        load=round(load, 1),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        run=run,
        row=row,
        strays=alarms,
        error=error,
        backend=backend,
    )


def table(trials: Sequence[Trial]) -> str:
    """A Markdown table with a row per fault."""
    lines = [
        "| fault | runs | recovered or failed | culprit named | losses identical | false alarms | recovery | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, word in words.INJECTIONS.items():
        own = [trial for trial in trials if trial.kind == kind]
        if not own:
            continue
        recoveries = [seconds for trial in own if (seconds := trial.recovery_s) is not None]
        cells = (
            word.label,
            len(own),
            _share(trial.expected for trial in own),
            _share(trial.row is not None and trial.row.correctly_blamed for trial in own),
            _share(trial.row is not None and trial.row.losses == "identical" for trial in own),
            sum(len(trial.strays) for trial in own),
            f"{median(recoveries):.1f} s" if recoveries else "",
            f"{max(recoveries):.1f} s" if recoveries else "",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _share(values: Iterable[bool]) -> str:
    flags = list(values)
    return f"{100 * sum(flags) / len(flags):.0f} %"


def list_failures(trials: Sequence[Trial]) -> str:
    """A Markdown list of the trials with an unexpected result."""
    lines: list[str] = []
    for trial in trials:
        row = trial.row
        if row is None:
            lines.append(f"{trial.kind} before step {trial.step}: {trial.error}")
        elif not row.correct or trial.strays:
            blamed = f"{row.blamed} of rank {row.blamed_rank}, node {row.blamed_node}" if row.blamed else "nothing"
            lines.append(
                f"{trial.kind} before step {trial.step}: {row.outcome}, blamed {blamed}, losses {row.losses}"
                f"{''.join(f', also {alarm}' for alarm in trial.strays)} (load {trial.load:g})"
            )
    return "".join(f"- {line}\n" for line in lines)


def page(trials: Sequence[Trial], job: Job) -> str:
    loads = [trial.load for trial in trials]
    head = HEAD.format(
        every=job.checkpoint.interval,
        hang=job.recovery.hang_timeout_s,
        backend=" and ".join(sorted({trial.backend for trial in trials})),
        count=len(trials),
        date=max(trial.when for trial in trials)[:10],
        torch=version("torch"),
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        load=f", which other programs kept busy (load {min(loads):.0f} to {max(loads):.0f})" if max(loads) > 4 else "",
    )
    failed = list_failures(trials)
    return head + table(trials) + NOTES + (f"Unexpected results:\n\n{failed}" if failed else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", choices=list(words.INJECTIONS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = jobs.read(JOB)
    job = jobs.parse(text, str(JOB), JOB.parent)
    if not options.write:
        STORE.mkdir(parents=True, exist_ok=True)
        store, done = Store(STORE), {trial.key for trial in read()}
        against = ""
        for fault, number in wanted(job, options.runs, [options.only] if options.only else list(words.INJECTIONS)):
            if (fault.kind, fault.step, number) in done:
                continue
            against = against or calm(job, text, store)
            trial = run_trial(job, text, fault, number, store, against)
            with TRIALS.open("ab") as lines:
                lines.write(msgspec.json.encode(trial) + b"\n")
            fine = trial.row is not None and trial.row.correct
            print(f"{fault.kind} of {fault.who} before step {fault.step}: {'well' if fine else 'NOT well'}, "
                  f"{trial.seconds:.0f} s", flush=True)  # fmt: skip
    trials = read()
    if not trials:
        print("no finished trials in out/chaos.jsonl.")
        return
    if options.write:
        PAGE.write_text(page(trials, job), "utf-8")
    print(table(trials) + "\n" + list_failures(trials))


if __name__ == "__main__":
    main()
