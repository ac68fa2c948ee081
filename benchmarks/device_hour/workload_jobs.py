"""Part 3: a mixture of experts, diffusion transformers, ResNet-50 and DLRM, next to their plans if there are any."""

from __future__ import annotations

from pathlib import Path

from benchmarks import collect
from benchmarks.collect import Session
from benchmarks.device_hour import job_records
from benchmarks.evidence import Devices
from trainyard import job_file

JOBS = Path(__file__).parent / "jobs"
NAMES = ("mixtral-cut", "flux-cut", "sd3-cut", "resnet-50", "dlrm-cut")
"""Files of `JOBS`, in the order in which they run."""
LEAST_S = 40.0
"""Seconds without which no job is started: importing torch, compiling kernels, profiling and booking."""


def run(session: Session, devices: Devices) -> bool:
    """Whether every job ran."""
    rows, all_ran = "", True
    for number, name in enumerate(NAMES):
        if session.left_s < LEAST_S:
            rows += job_records.row_without_run(name, "no time left")
            all_ran = False
            continue
        ended = session.train(job_file.load(JOBS / f"{name}.toml"), f"{name}.txt")
        if ended == collect.RAN:
            max_bytes = job_records.bytes_left(session, len(NAMES) - number)
            rows += job_records.record(session, name, devices.names[0], max_bytes)
        else:
            rows += job_records.row_without_run(name, ended)
            all_ran = False
    session.keep("README.md", f"# Other models\n\n{job_records.HEAD}{rows}")
    return all_ran
