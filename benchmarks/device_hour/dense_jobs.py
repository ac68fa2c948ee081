"""Part 2: dense decoders of 1 to 8 billion parameters, bfloat16 and float8, eager and compiled, next to their plans."""

from __future__ import annotations

from benchmarks import collect, dense
from benchmarks.collect import Session
from benchmarks.dense import Variant
from benchmarks.device_hour import job_records
from benchmarks.evidence import Devices

VARIANTS = (
    Variant("bfloat16", compiled=False, width=2048),
    Variant("bfloat16", compiled=False),
    Variant("float8", compiled=True),
    Variant("bfloat16", compiled=True),
    Variant("float8", compiled=True, width=2048),
    Variant("bfloat16", compiled=True, width=2048),
    Variant("float8", compiled=False, width=2048),
    Variant("float8", compiled=False),
)
"""Width 2048 is a model of one billion parameters, 4096 as many layers of Llama 3 8B as fit. The first run is kept
whole."""
WHOLE_RUN_BYTES = 250_000
"""Bytes for the trace of the run that is kept whole."""


def run(session: Session, devices: Devices) -> bool:
    """Whether every variant for which there was time and memory ran."""
    rows, lines, all_ran = "", "", True
    peak = dense.peak_of(devices.names[0])
    for number, variant in enumerate(VARIANTS):
        name = str(variant)
        jobs = dense.fitting(len(devices.names), devices.memory, peak, session.left_s, variant)
        tried = session.largest_job(jobs, f"{name}.txt")
        lines += "".join(f"- {name}: {attempt}\n" for attempt in tried)
        if not tried or tried[-1].ended != collect.RAN:
            rows += job_records.row_without_run(name, tried[-1].ended if tried else "no time or memory left")
            all_ran = all_ran and not tried
            continue
        max_bytes = WHOLE_RUN_BYTES if number == 0 else job_records.bytes_left(session, len(VARIANTS) - number)
        rows += job_records.record(session, name, devices.names[0], max_bytes)
        if number == 0:
            job_records.record_whole_run(session, name)
    session.keep("README.md", f"# Dense decoders\n\n{job_records.HEAD}{rows}\nTried:\n\n{lines}")
    return all_ran and "| ran |" in rows
