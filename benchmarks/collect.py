"""Commands of `make device-evidence` under a deadline, and the small records of what they show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import evidence, scrub
from trainyard import job_file
from trainyard.errors import TrainyardError
from trainyard.job import Job

ROOT = Path(__file__).parents[1]
LIMIT = 2_000_000
RECORDS_S = 30.0
"""Seconds of a part that are kept back for its records."""
RAN, OUT_OF_MEMORY = "ran", "out of memory"
"""How a job can end, except for an exit code."""
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
    """One part of the evidence, in the folder `folder`; `store` is thrown away. `max_bytes`: limit of the records.
    Commands end at the deadline, after `limit_s` seconds."""

    def __init__(self, folder: Path, store: Path, limit_s: float = evidence.PART_S, max_bytes: int = LIMIT) -> None:
        self.folder = folder
        self.store = store
        self.max_bytes = max_bytes
        self.deadline = time.monotonic() + limit_s
        self.hidden = scrub.private()

    @property
    def left_s(self) -> float:
        """Seconds left for commands, without the time kept back for the records."""
        return self.deadline - time.monotonic() - RECORDS_S

    def tests(self, where: str = "tests/device") -> str:
        """How the device tests ended, in pytest's words; what they printed is kept. Empty unless all is well."""
        # Plugins that happen to be installed stay out; the settings file names this one's option.
        plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TRAINYARD_STORE": str(self.store / "tests")}
        words = ["-p", "pytest_timeout", "-p", "no:cacheprovider", "-rA", "-m", "device", where]
        done = self.call([sys.executable, "-m", "pytest", *words], self.left_s, **plain)
        output = done.stdout + done.stderr
        self.keep("tests.txt", output)
        last = done.stdout.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        print(f"device tests: {last[0]}", flush=True)
        return last[0] if done.returncode == 0 and re.search(r"\b[1-9]\d* passed", last[0]) else ""

    def largest_job(self, jobs: Iterable[tuple[Job, str]], log: str = "run.txt") -> list[Tried]:
        """The jobs in turn until one runs, which is then the last; only one too large is followed by another."""
        tried: list[Tried] = []
        for job, arithmetic in jobs:
            print(f"{job.decoder.name}: {arithmetic}", flush=True)
            ended = self.train(job, log)
            tried.append(Tried(job, arithmetic, ended))
            if ended != OUT_OF_MEMORY:
                break
        return tried

    def train(self, job: Job, log: str) -> str:
        """How the run of a job ended: `RAN`, `OUT_OF_MEMORY` or its exit code. `log`: the record of what it printed."""
        path = self.store.with_name("job.toml")
        path.write_text(job_file.write(job), "utf-8")
        done = self.trainyard("run", str(path), limit=self.left_s)
        output = done.stdout if done.returncode == 0 else done.stdout + done.stderr
        self.keep(log, output[-LOG_END:])
        is_full = done.returncode != 0 and _FULL.search(output)
        ended = RAN if done.returncode == 0 else OUT_OF_MEMORY if is_full else f"exit code {done.returncode}"
        print(f"{log.removesuffix('.txt')}: {ended}", flush=True)
        return ended

    def keep(self, name: str, text: str) -> None:
        """`text` as a record, without what is private."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(scrub.clean(text, self.hidden), "utf-8")

    def trainyard(self, *args: str, limit: float) -> subprocess.CompletedProcess[str]:
        return self.call([sys.executable, "-m", "trainyard.cli.main", *args], limit, TRAINYARD_STORE=str(self.store))

    def must(self, *args: str) -> str:
        """What `trainyard` prints. Raises `TrainyardError` if it fails."""
        done = self.trainyard(*args, limit=60)
        if done.returncode:
            raise TrainyardError(f"trainyard {args[0]} ends with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def call(self, command: Sequence[str], limit: float, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command, and kill its process group at the limit in seconds; exit code 124 then, as by `timeout`."""
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


def sound(folder: Path, session: Session) -> bool:
    """Whether the records are small enough and free of private data; prints both."""
    size, leaks = size_of(folder), list(scrub.leaks(folder, session.hidden))
    print(f"{folder.name}: {size / 1e6:.2f} MB")
    if size > session.max_bytes:
        print(f"That is more than {session.max_bytes / 1e6:.1f} MB: something there is not small.", file=sys.stderr)
    for leak in leaks:
        print(f"Do not publish this: {leak}", file=sys.stderr)
    return size <= session.max_bytes and not leaks


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
