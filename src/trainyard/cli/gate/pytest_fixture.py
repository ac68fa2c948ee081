"""A pytest fixture: `perf_gate("job.toml")` fails a test where the code is slower than that of `--perf-base REV`.

Loaded with every pytest of an environment that has trainyard: nothing else is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from trainyard.compare.gate.gate_result import GateResult

PerfGate = Callable[..., "GateResult"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trainyard")
    group.addoption("--perf-base", metavar="REV", help="What perf_gate holds the code against; without it, it skips.")
    group.addoption("--perf-pairs", type=int, default=20, metavar="N", help="Pairs of runs at most (20).")


@pytest.fixture
def perf_gate(request: pytest.FixtureRequest) -> PerfGate:
    """`perf_gate("job.toml")`, or `perf_gate("python", "train.py")`: the working tree and `--perf-base` take turns, as
    `trainyard gate run` lets them. Worse fails the test, not enough evidence skips it; else what was found is returned.
    `metrics`, `margin`, `alpha`: as there."""
    base: str | None = request.config.getoption("--perf-base")
    if base is None:
        pytest.skip("--perf-base REV says what to hold the code against")

    def check(
        *what: str, metrics: tuple[str, ...] = ("step_time",), margin: float = 0.03, alpha: float = 0.01
    ) -> GateResult:
        from trainyard.cli.gate.interleaved_runs import made
        from trainyard.cli.support.output import say
        from trainyard.compare.gate.gate_result import GateRequest
        from trainyard.compare.gate.verdict import Rule
        from trainyard.report.gate.sentences import headline

        pairs = int(request.config.getoption("--perf-pairs") or 20)
        rule = Rule(alpha=alpha, margin=margin, cap=pairs)
        found = made(what, base, None, GateRequest(metrics, rule), say)
        if found.says == "worse":
            pytest.fail(headline(found), pytrace=False)
        if found.says == "unclear":
            pytest.skip(headline(found))
        return found

    return check
