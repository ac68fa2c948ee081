"""How much the repeats of a timed call differ from each other, as a warning."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from trainyard.predict.calibrate.probed_machine import ProbedTime

_MAX_SPREAD = 0.2
"""Spread of the median probe from which on the probes are reported; two idle cores of a virtual machine had 0.11. The
spread of a probe is the distance of the quartiles of its repeats over their median."""


def spread_warning(probes: Sequence[ProbedTime]) -> str:
    """A sentence with the spread of the median probe if it is large; empty otherwise. `probes`: at least one."""
    spread = median((probe.high - probe.low) / probe.seconds for probe in probes)
    if spread <= _MAX_SPREAD:
        return ""
    return (
        f"The timed calls vary: the quartiles of a call's repeats are {100 * spread:.0f} % of its time apart (median "
        f"of {len(probes)} calls). Repeat the probe on an idle machine with a steady clock."
    )
