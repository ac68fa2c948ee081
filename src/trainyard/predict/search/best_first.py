"""Best-first search: yields cases in the order of their step time, and simulates only those that could be next.

Each case has a lower bound on its time. The fastest simulated case is next once no other bound is below its time, so
the order is that of simulating all cases (Hart et al. 1968, IEEE TSSC 4(2)). A case is one layout, a row of `Cases`.
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

_FIRST_CASES = 8
"""Cases of the first simulation, among which the fastest often is."""
_CASES_PER_SIMULATION = 32
"""Cases of a later simulation: the cost of one more in a batch is small."""
MAX_SIMULATED_OPERATIONS = 1 << 24
"""Largest number of forward and backward passes of pipelines that a search simulates: Llama 3 405B on 16,384 devices
takes 4 million."""
ROUNDING_TOLERANCE = 1 - 1e-9
"""Tolerance of a bound: it is summed in another order than the time that it bounds."""


class TimedCase(NamedTuple):
    """The case at `index` of the search's cases, which is row `row` of `times`. `required`: bytes of a device."""

    wall_seconds: float
    required: float
    index: int
    row: int
    times: StepTime


class BestFirstSearch:
    """Iterates over the cases at the indices `remaining`, with one of `bounds` each. Of cases with equal time, the one
    with less memory comes first."""

    def __init__(
        self,
        cases: Cases,
        remaining: npt.NDArray[np.intp],
        bounds: Column,
        required: Column,
        hardware: RankHardware,
        constants: Constants,
    ) -> None:
        """Sorts the `remaining` cases (row numbers in `cases`) by `bounds`, lower bounds of their step's seconds.
        `required`: bytes of device memory of each case."""
        order = np.argsort(bounds, kind="stable")
        self._cases, self._required, self._hardware, self._constants = cases, required, hardware, constants
        self._remaining, self._bounds = remaining[order], bounds[order] * ROUNDING_TOLERANCE
        self._simulated: list[TimedCase] = []
        self._operations = 0.0
        self._batch_size = _FIRST_CASES
        self._on_front = False  # whether the search is for the Pareto front of time and memory

    def __iter__(self) -> Iterator[TimedCase]:
        while len(self._remaining) or self._simulated:
            while len(self._remaining) and (not self._simulated or self._bounds[0] <= self._simulated[0].wall_seconds):
                self._simulate_batch()
            yield heappop(self._simulated)

    def _simulate_batch(self) -> None:
        """Simulates the remaining cases with the least bounds, of which those that may be on the front if the search is
        for that, and adds them to the heap of simulated ones."""
        chosen = np.flatnonzero(self._may_be_on_front()) if self._on_front else np.arange(len(self._remaining))
        chosen = chosen[: self._batch_size]
        indices = self._remaining[chosen]
        self._remaining, self._bounds = np.delete(self._remaining, chosen), np.delete(self._bounds, chosen)
        self._batch_size = _CASES_PER_SIMULATION
        self._count_operations(indices)
        times = step.step(self._cases.take(indices), self._hardware, self._constants)
        for row, (index, wall_seconds) in enumerate(zip(indices.tolist(), times.wall.tolist(), strict=True)):
            heappush(
                self._simulated,
                TimedCase(
                    wall_seconds=wall_seconds, required=float(self._required[index]), index=index, row=row, times=times
                ),
            )

    def _may_be_on_front(self) -> npt.NDArray[np.bool_]:
        """Mask of the remaining cases that need less memory than every simulated one which is faster than their bounds,
        and than every remaining one with a lower bound. The first is always among them, since it is next."""
        simulated = sorted(self._simulated)
        walls_s = [timed.wall_seconds for timed in simulated]
        least_required = np.minimum.accumulate([np.inf, *(timed.required for timed in simulated)])
        required = self._required[self._remaining]
        is_less = required < least_required[np.searchsorted(walls_s, self._bounds)]
        of_lower_bounds = np.minimum.accumulate(np.append(np.inf, np.where(is_less, required, np.inf)))[:-1]
        is_on_front = is_less & (required < of_lower_bounds)
        is_on_front[0] = True
        return is_on_front

    def _count_operations(self, indices: npt.NDArray[np.intp]) -> None:
        """Adds the pipeline operations of these cases to the count before they are simulated. `indices`: rows of the
        search's cases. Raises `BadJob` above `MAX_SIMULATED_OPERATIONS`."""
        batch = self._cases.take(indices)
        # Pipelines with more than four times the rounds are extrapolated from fewer micro-batches.
        micro_batches = np.minimum(batch.accumulate, 4 * simulation.rounds(batch.pp) * batch.pp)
        passes = 2 * batch.interleave * micro_batches  # of a rank, forward and backward
        self._operations += float(np.sum(np.where(batch.pp > 1, batch.pp * passes, 0.0)))
        if self._operations > MAX_SIMULATED_OPERATIONS:
            raise BadJob(
                f"the fastest layouts are pipelines with more than {MAX_SIMULATED_OPERATIONS:,} operations per step "
                "in all, which take minutes to simulate.",
                "Fix some of the axes, such as --fix pp=8 --fix micro_batch_size=4.",
            )

    def only_below(self, required: float) -> None:
        """Restricts the rest of the search to cases that need less than `required` bytes of device memory."""
        self._on_front = True
        smaller = self._required[self._remaining] < required
        self._remaining, self._bounds = self._remaining[smaller], self._bounds[smaller]
        self._simulated = [timed for timed in self._simulated if timed.required < required]
        heapify(self._simulated)
