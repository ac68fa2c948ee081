"""`trainyard gate HEAD --base BASE`, and its modes."""

from __future__ import annotations

from trainyard.cli.support.default_group import DefaultGroup, Mode

command = DefaultGroup(
    name="gate",
    help="Test for a slowdown with known error rates, and name the account that caused it.",
    default="trainyard.cli.gate.compare",
    modes={
        "run": Mode(
            "trainyard.cli.gate.run",
            "Run a job or script with the code of two revisions, interleaved, and compare the runs.",
        ),
        "bisect": Mode(
            "trainyard.cli.gate.bisect", "Find the commit that caused a slowdown, with the same test at each step."
        ),
        "self-check": Mode(
            "trainyard.cli.gate.self_check",
            "Measure this machine's noise, and the smallest slowdown that can be detected on it.",
        ),
        "convergence": Mode(
            "trainyard.cli.gate.convergence", "Compare the loss curves of HEAD and BASE, for runs with the same seeds."
        ),
    },
)
