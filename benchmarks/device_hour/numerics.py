"""Part 5: losses and gradient norms of small jobs on the device against those on the CPU, one process per job."""

from __future__ import annotations

import sys

import msgspec

from benchmarks.collect import LOG_END, Session
from benchmarks.device_hour.compare_numerics import JOBS
from benchmarks.evidence import Devices
from trainyard import plugins
from trainyard.numerics.parity import Deviation, Parity
from trainyard.run.local.host_devices import find_devices

HEAD = """| job | verdict | loss: error of tolerance | gradient norm: error of tolerance | reason |
|---|---|---|---|---|
"""
JOB_S = 90.0
"""Seconds at most for one job in all number formats."""


def run(session: Session, devices: Devices) -> bool:
    """Whether no job differs by more than rounding explains, and each was compared."""
    vendor = find_devices(plugins.load_all("vendors"))[0].vendor
    results: list[Parity] = []
    failed = ""
    for name in JOBS:
        command = [sys.executable, "-m", "benchmarks.device_hour.compare_numerics", name, vendor]
        done = session.call(command, min(JOB_S, session.left_s))
        if done.returncode:
            failed += f"- {name} ended with {done.returncode}, see {name}.txt\n"
            session.keep(f"{name}.txt", (done.stdout + done.stderr)[-LOG_END:])
            continue
        results += msgspec.json.decode(done.stdout, type=list[Parity])
    session.keep("numerics.json", msgspec.json.encode(results).decode() + "\n")
    rows = "".join(map(row, results))
    session.keep("README.md", f"# The device against the CPU\n\n{HEAD}{rows}\n{failed}")
    return not failed and all(result.verdict == "equal" for result in results)


def row(result: Parity) -> str:
    deviations = (_cell(result.loss), _cell(result.grad_norm))
    # The reason of an equal job only says that a single process tests no layout.
    reason = "" if result.verdict == "equal" else result.reason
    return f"| {' | '.join((result.mix, result.verdict, *deviations, reason))} |\n"


def _cell(deviation: Deviation | None) -> str:
    return "" if deviation is None else f"{deviation.error_text} of {deviation.tolerance:.1e}, step {deviation.step}"
