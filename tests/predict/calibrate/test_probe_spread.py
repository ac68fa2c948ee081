"""The warning about probes that vary between their repeats."""

from __future__ import annotations

import pytest

from trainyard.predict.calibrate.probe_spread import spread_warning
from trainyard.predict.calibrate.probed_machine import ProbedTime


def probe(spread: float) -> ProbedTime:
    return ProbedTime("copy", (1 << 20,), 1e-4, 1e-4 * (1 - spread / 2), 1e-4 * (1 + spread / 2))


@pytest.mark.parametrize(("wide", "is_reported"), [(0, False), (3, False), (5, True), (8, True)])
def test_spread_is_reported_if_most_probes_vary(wide: int, is_reported: bool) -> None:
    warning = spread_warning([probe(0.4)] * wide + [probe(0.02)] * (8 - wide))
    assert bool(warning) == is_reported
    assert ("40 %" in warning) == is_reported
