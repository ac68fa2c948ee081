"""The table of skipped tests at the end of a run; in continuous integration, an unexpected skip fails the run.

`expected_skips.toml` lists the reasons for which a test may be skipped. Every other skip means that an engine or a
library is missing, and that its tests stopped running without anybody noticing.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

EXPECTED = Path(__file__).with_name("expected_skips.toml")


class SkipTable:
    """Collects the reason of every skipped test or module."""

    def __init__(self, expected: Path = EXPECTED) -> None:
        groups = tomllib.loads(expected.read_text("utf-8"))["group"]
        self.patterns = [(group["name"], re.compile(group["reason"])) for group in groups]
        self.reasons: dict[str, str] = {}  # node id -> reason

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._record(report)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def group(self, reason: str) -> str | None:
        """Name of the expected group that `reason` belongs to; None if the skip is unexpected."""
        return next((name for name, pattern in self.patterns if pattern.search(reason)), None)

    def unexpected(self) -> list[str]:
        """Node ids of the tests that may not be skipped in continuous integration."""
        return sorted(node for node, reason in self.reasons.items() if self.group(reason) is None)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("skipped tests")
        counts = Counter(self.reasons.values())
        terminalreporter.line(f"{'tests':>5}  {'expected':<14}  reason")
        for reason, count in sorted(counts.items(), key=lambda item: (self.group(item[0]) or "", -item[1])):
            terminalreporter.line(f"{count:>5}  {self.group(reason) or 'NOT EXPECTED':<14}  {reason}")
        if not counts:
            terminalreporter.line("    0")
        for node in self.unexpected():
            terminalreporter.line(f"not expected: {node}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if os.environ.get("CI") and self.unexpected() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
