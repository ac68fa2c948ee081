"""What the machine itself did otherwise: clocks, power, temperature, load, as the runs of base and head read them.

No two runs read alike, so a reading is named only where its change over the pairs is none that chance would make.
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

_FEWEST = 3
_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([^\d\s]*)\s*\Z")


class MachineReading(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the pairs that have it, in `unit`; `chance`: by a paired t test, times the readings tried."""

    name: str
    unit: str
    was: float
    now: float
    chance: float


def moved(pairs: Sequence[Pair], alpha: float) -> tuple[MachineReading, ...]:
    """The surest first: those that all together are named by chance as seldom as `alpha`."""
    tried = [_reading(name, pairs) for name in sorted({name for pair in pairs for name in _numbers(pair.base)})]
    known = [one for one in tried if one]
    adjusted = [msgspec.structs.replace(one, chance=min(1.0, one.chance * len(known))) for one in known]
    return tuple(sorted((one for one in adjusted if one.chance < alpha), key=lambda one: one.chance))


def _reading(name: str, pairs: Sequence[Pair]) -> MachineReading | None:
    both = [(base[name], head[name]) for base, head in ((_numbers(p.base), _numbers(p.head)) for p in pairs)
            if name in base and name in head and base[name][1] == head[name][1]]  # fmt: skip
    if len(both) < _FEWEST:
        return None
    was, now = (np.array([side[0] for side in sides]) for sides in zip(*both))
    apart = now - was
    spread = float(np.std(apart, ddof=1))
    mean = float(np.mean(apart))
    if spread:
        chance = student_t.two_sided(mean / (spread / sqrt(len(apart))), len(apart) - 1)
    else:
        chance = 0.0 if mean else 1.0
    return MachineReading(name=name, unit=both[0][0][1], was=float(was.mean()), now=float(now.mean()), chance=chance)


def _numbers(run: Run) -> dict[str, tuple[float, str]]:
    """Name -> value and unit of what was read as a number."""
    found = {name: _NUMBER.match(said) for name, said in run.provenance.clocks.items()}
    return {name: (float(match[1]), match[2]) for name, match in found.items() if match}
