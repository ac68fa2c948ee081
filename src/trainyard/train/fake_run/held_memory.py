"""What a rank of a job holds, told by the training code itself: `fake.py`, in a process of its own. No torch here.

A process of its own, since torch keeps what it learned of process groups that are no more.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from trainyard import job_file as jobs
from trainyard.errors import BadJob, MissingLibrary
from trainyard.job import Job

WORKER = "trainyard.train.fake_run.fake_rank"
_REFUSED = 3


class Held(NamedTuple):
    """Bytes of one rank. `peak`: the most at any time of a step, optimizer's state included; `update`: the most while
    the optimizer works. The first three are what stays between a backward pass and the update."""

    parameters: int
    gradients: int
    optimizer: int
    peak: int
    update: int


def ends(job: Job) -> list[int]:
    """The ranks worth asking: one of the first stage, which keeps most micro-batches, and one of the last."""
    layout = job.layout
    return sorted({0, layout.ranks - layout.ranks // layout.pp})


def held(job: Job, rank: int) -> Held:
    """Raises `BadJob` for what has no fake run, and `MissingLibrary` without torch."""
    if find_spec("torch") is None:
        raise MissingLibrary("an exact count of memory runs the training code, which needs torch.", "pip install torch")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(jobs.write(job), "utf-8")
        command = [sys.executable, "-m", WORKER, str(path), str(rank)]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        says = asked.stderr.strip().splitlines() or ["it said nothing"]
        raise BadJob(says[-1] if asked.returncode == _REFUSED else f"its fake run failed: {says[-1]}")
    return msgspec.json.decode(asked.stdout.splitlines()[-1], type=Held)


def refuse(why: BadJob) -> None:
    """Ends this process as one whose job has no fake run."""
    sys.stderr.write(f"{why.says}\n")
    raise SystemExit(_REFUSED)
