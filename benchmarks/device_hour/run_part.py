"""Runs one part of the device evidence: `evidence/<device>-<date>/<part>/`, with the machine and the date."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks import collect
from benchmarks.collect import Session
from benchmarks.device_hour import dense_jobs, device_tests, faults, numerics, probe, workload_jobs
from benchmarks.evidence import PARTS, Devices
from trainyard import plugins
from trainyard.errors import TrainyardError
from trainyard.run.local.host_devices import find_devices
from trainyard.run.record import provenance


class Part(NamedTuple):
    """`run` writes the records and README.md of the part, and returns whether everything is as expected. `max_bytes`:
    limit of the records."""

    run: Callable[[Session, Devices], bool]
    max_bytes: int


RUNS: Mapping[str, Part] = {
    "tests": Part(device_tests.run, 200_000),
    "dense": Part(dense_jobs.run, 900_000),
    "workloads": Part(workload_jobs.run, 500_000),
    "probe": Part(probe.run, 100_000),
    "numerics": Part(numerics.run, 100_000),
    "faults": Part(faults.run, 150_000),
}


def run_part(number: int, devices: Devices) -> bool:
    """Run part `number` in place of an earlier run of this day; whether everything is as expected, and no record is too
    large or has private data."""
    name = PARTS[number]
    slug = re.sub(r"[^a-z0-9]+", "-", devices.names[0].lower()).strip("-")
    folder = collect.ROOT / "evidence" / f"{slug}-{datetime.now(UTC):%Y-%m-%d}" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        session = Session(folder, Path(scratch) / "store", max_bytes=RUNS[name].max_bytes)
        session.keep("machine.json", json.dumps(machine_facts(devices), indent=1) + "\n")
        try:
            passed = RUNS[name].run(session, devices)
        except TrainyardError as error:
            print(f"error: {error}", file=sys.stderr)
            passed = False
    return collect.sound(folder, session) and passed


def machine_facts(devices: Devices) -> dict[str, object]:
    """Date, torch build, driver, devices, clocks and packages."""
    vendors = plugins.load_all("vendors")
    host_devices = find_devices(vendors)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "torch": devices.torch,
        "driver": sorted({device.facts["driver"] for device in host_devices if "driver" in device.facts}),
        "devices": list(devices.names),
        "memory_bytes": devices.memory,
        "clocks": provenance.telemetry(vendors),
        "packages": provenance.packages(),
    }
