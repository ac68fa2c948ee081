"""Part 1: the device tests, among them every kind of job that one device can hold, closed-form memory and clocks."""

from __future__ import annotations

from benchmarks.collect import Session
from benchmarks.evidence import Devices


def run(session: Session, devices: Devices) -> bool:
    outcome = session.tests()
    session.keep("README.md", f"# Device tests\n\n{outcome or 'Not all passed'}: see tests.txt.\n")
    return bool(outcome)
