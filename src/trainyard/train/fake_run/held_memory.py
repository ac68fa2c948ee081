"""Measures the memory of a rank by running the training code with fake tensors (`fake_rank.py`). Needs no torch here.

The run is in a separate process, since torch keeps state of destroyed process groups.
"""

from __future__ import annotations

import re
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
_REFUSED_EXIT_CODE = 3


class RankMemory(NamedTuple):
    """Bytes of one rank. `peak`: the maximum in a step, optimizer state included; `update`: the maximum during the
    optimizer step. The first three are allocated between the backward pass and the update."""

    parameters: int
    gradients: int
    optimizer: int
    peak: int
    update: int


def representative_ranks(job: Job) -> list[int]:
    """The ranks whose memory is largest: one of the first pipeline stage (most micro-batches in flight) and one of the
    last."""
    layout = job.layout
    return sorted({0, layout.ranks - layout.ranks // layout.pp})


def uncounted_setting(job: Job) -> str:
    """The setting for which no fake run counts the memory of the job, with the reason; empty if one does: fake tensors
    have no values and one kind of memory."""
    if job.recipe.offload:
        return "offload = true at $.recipe: a simulated run does not distinguish host memory from device memory."
    if job.recipe.dtype == "float8":
        return "dtype = 'float8' at $.recipe: a simulated run has no values to scale."
    return ""


def measure_rank(job: Job, rank: int) -> RankMemory:
    """Measures the memory of rank `rank` of the job in a separate process. Raises `BadJob` if the job cannot run with
    fake tensors, `MissingLibrary` without torch."""
    if find_spec("torch") is None:
        raise MissingLibrary("an exact count of memory runs the training code, which needs torch.", "pip install torch")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(jobs.write(job), "utf-8")
        command = [sys.executable, "-m", WORKER, str(path), str(rank)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        if process.returncode == _REFUSED_EXIT_CODE:
            raise BadJob(process.stderr.strip().splitlines()[-1])
        raise BadJob(
            f"its fake run failed: {find_error(process.stderr)}",
            f"python -m {WORKER} JOB.toml {rank} prints the traceback: please report it.",
        )
    return msgspec.json.decode(process.stdout.splitlines()[-1], type=RankMemory)


def find_error(stderr: str) -> str:
    """The line of the last exception in `stderr` that has a message, else the last line that is not blank. torch
    prefixes the lines of a traceback with the rank, and a pipeline raises the error of a stage again without it."""
    lines = [re.sub(r"^\[rank\d+\]:", "", line).rstrip() for line in stderr.splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if re.match(r" ?[\w.]+(Error|Exception|Interrupt): *\S", line)]
    return (errors or lines or ["no error message"])[-1].strip()


def refuse_job(error: BadJob) -> None:
    """Ends this process with the error message and the exit code for a job that cannot run with fake tensors."""
    sys.stderr.write(f"{error.message}\n")
    raise SystemExit(_REFUSED_EXIT_CODE)
