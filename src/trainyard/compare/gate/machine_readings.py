"""Changes in the readings of the machine (clocks, power, temperature, load) between the runs of base and head.

Readings differ between any two runs, so a reading is reported only if its change over the pairs is significant. A pair
is a run of the base and a run of the head; the readings of a run are texts such as `1410 MHz` in its provenance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

import msgspec
import numpy as np

from trainyard.compare.gate.pairs import Pair
from trainyard.record import Run
from trainyard.stats import student_t

_MIN_PAIRS = 3
"""Smallest number of pairs with a reading for which it is tested."""
_READING = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([^\d\s]*)\s*\Z")
"""A number and its unit."""


class MachineReading(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the pairs that have the reading, in `unit`; `p_value`: of a paired t test, times the number of
    readings tested (Bonferroni)."""

    name: str
    unit: str
    before: float
    after: float
    p_value: float


def find_changed_readings(pairs: Sequence[Pair], alpha: float) -> tuple[MachineReading, ...]:
    """The readings that changed, the most significant first. `alpha`: family-wise error rate over all readings."""
    names = sorted({name for pair in pairs for name in _parse_readings(pair.base)})
    tested = [reading for name in names if (reading := _test_reading(name, pairs))]
    adjusted = [msgspec.structs.replace(reading, p_value=min(1.0, reading.p_value * len(tested))) for reading in tested]
    significant_readings = (reading for reading in adjusted if reading.p_value < alpha)
    return tuple(sorted(significant_readings, key=lambda reading: reading.p_value))


def _test_reading(name: str, pairs: Sequence[Pair]) -> MachineReading | None:
    """The change of the reading `name` with its p-value (two-sided t-test over pairs); None if too few pairs have
    it."""
    readings = ((_parse_readings(pair.base), _parse_readings(pair.head)) for pair in pairs)
    readings_of_pair = [(base[name], head[name]) for base, head in readings
            if name in base and name in head and base[name][1] == head[name][1]]  # fmt: skip
    if len(readings_of_pair) < _MIN_PAIRS:
        return None
    base_values, head_values = (np.array([side[0] for side in sides]) for sides in zip(*readings_of_pair))
    change = head_values - base_values
    deviation = float(np.std(change, ddof=1))
    mean_change = float(np.mean(change))
    if deviation:
        chance = student_t.two_sided_p(mean_change / (deviation / sqrt(len(change))), len(change) - 1)
    else:
        chance = 0.0 if mean_change else 1.0
    return MachineReading(
        name=name,
        unit=readings_of_pair[0][0][1],
        before=float(base_values.mean()),
        after=float(head_values.mean()),
        p_value=chance,
    )


def _parse_readings(run: Run) -> dict[str, tuple[float, str]]:
    """Name -> (value, unit) of the numeric readings of a run."""
    matches = {name: _READING.match(text) for name, text in run.provenance.clocks.items()}
    return {name: (float(match[1]), match[2]) for name, match in matches.items() if match}
