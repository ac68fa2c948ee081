"""Cases in the order of the time that they take, of which only those are simulated that could be next.

Each has a bound that its time is not below. The soonest of those that were simulated comes next as soon as no other's
bound is below it: the order is that of simulating all (best-first search: Hart et al. 1968, IEEE TSSC 4(2)).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainyard.errors import BadJob
from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.pipeline import simulation
from trainyard.predict.time import step
from trainyard.predict.time.step import StepTime

_BATCH = 32
"""Cases that are simulated at once: one more costs little."""
MOST_SIMULATED = 1 << 24
"""Forward and backward passes of pipelines that a search simulates: Llama 3 405B on 16,384 devices takes 4 million."""
_ROUNDED = 1 - 1e-9
"""A bound is summed in another order than what it is the bound of."""


class TimedCase(NamedTuple):
    """A case by its `place`: seconds of its step, which is the one `at` that place of `found`; bytes that it needs."""

    wall: float
    need: float
    place: int
    at: int
    found: StepTime


class BestFirstSearch:
    """Those of `made` at the places `left`, which `bounds` are of, one each. Of equal time the smaller comes first."""

    def __init__(
        self,
        made: Cases,
        left: npt.NDArray[np.intp],
        bounds: Column,
        need: Column,
        hardware: RankHardware,
        tuned: Constants,
    ) -> None:
        order = np.argsort(bounds, kind="stable")
        self._made, self._need, self._site, self._tuned = made, need, hardware, tuned
        self._left, self._bounds = left[order], bounds[order] * _ROUNDED
        self._waiting: list[TimedCase] = []
        self._operations = 0.0

    def __iter__(self) -> Iterator[TimedCase]:
        while len(self._left) or self._waiting:
            while len(self._left) and (not self._waiting or self._bounds[0] <= self._waiting[0].wall):
                self._simulate()
            yield heappop(self._waiting)

    def _simulate(self) -> None:
        places, self._left = self._left[:_BATCH], self._left[_BATCH:]
        self._bounds = self._bounds[_BATCH:]
        self._spend(places)
        found = step.step(self._made.take(places), self._site, self._tuned)
        for at, (place, wall) in enumerate(zip(places.tolist(), found.wall.tolist(), strict=True)):
            heappush(self._waiting, TimedCase(wall, float(self._need[place]), place, at, found))

    def _spend(self, places: npt.NDArray[np.intp]) -> None:
        """Count the operations of these cases before they are simulated. Raises `BadJob` for more than can be."""
        some = self._made.take(places)
        micro = np.minimum(some.accumulate, 4 * simulation.rounds(some.pp) * some.pp)
        self._operations += float(np.sum(np.where(some.pp > 1, 2 * some.pp * some.interleave * micro, 0.0)))
        if self._operations > MOST_SIMULATED:
            raise BadJob(
                f"the fastest layouts are pipelines with more than {MOST_SIMULATED:,} operations a step together, "
                "which takes minutes to simulate.",
                "Fix some of the axes, as --fix pp=8 --fix microbatch=4.",
            )

    def only_below(self, need: float) -> None:
        """Nothing else that needs as many bytes is wanted."""
        small = self._need[self._left] < need
        self._left, self._bounds = self._left[small], self._bounds[small]
        self._waiting = [one for one in self._waiting if one.need < need]
        heapify(self._waiting)
