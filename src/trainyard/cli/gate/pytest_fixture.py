"""A pytest fixture: `perf_gate("job.toml")` fails a test if the code is slower than that of `--perf-base REV`.

Loaded by every pytest run in an environment that has trainyard, so that it imports nothing else before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trainyard.report.gate.gate_report import GateReport

PerfGate = Callable[..., "GateReport"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the fixture to pytest's command line (a hook that pytest calls)."""
    group = parser.getgroup("trainyard")
    group.addoption("--perf-base", metavar="REV", help="Revision that perf_gate compares with; tests skip without it.")
    group.addoption("--perf-pairs", type=int, default=20, metavar="N", help="Maximum number of pairs of runs (20).")


@pytest.fixture
def perf_gate(request: pytest.FixtureRequest) -> PerfGate:
    """`perf_gate("job.toml")` or `perf_gate("python", "train.py")`: compare the working tree with `--perf-base`, like
    `trainyard gate run`. A slowdown fails the test, too little evidence skips it; otherwise the result is returned.
    `metrics`, `margin`, `alpha`: as in `trainyard gate run`."""
    base: str | None = request.config.getoption("--perf-base")
    if base is None:
        pytest.skip("no revision to compare with: pass --perf-base REV")

    def check(
        *target: str, metrics: tuple[str, ...] = ("step_time",), margin: float = 0.03, alpha: float = 0.01
    ) -> GateReport:
        """Fails the test if `target` is slower than the base by more than `margin`; skips it if that is undecided."""
        from trainyard import api
        from trainyard.cli.support.output import say

        pairs = int(request.config.getoption("--perf-pairs") or 20)
        result = api.gate_run(target, base=base, pairs=pairs, metrics=metrics, margin=margin, alpha=alpha, say=say)
        if result.verdict == "worse":
            pytest.fail(result.headline, pytrace=False)
        if result.verdict == "unclear":
            pytest.skip(result.headline)
        return result

    return check
