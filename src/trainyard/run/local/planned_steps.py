"""The steps of a run: which are warm-up, timed or profiled, and which are left for a new process."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from trainyard.job import PROFILER_WARMUP, Measure


class PlannedStep(NamedTuple):
    """One step of a run and its purpose. `step`: its number from 0 over the whole run; `repeat`: the repeat that it is
    part of; `warmup`: its time is discarded; `profiled`: it is part of the profiled window; `starts_repeat`: it is the
    first of its repeat or of the window, so that all ranks meet before it."""

    step: int
    repeat: int
    warmup: bool = False
    profiled: bool = False
    starts_repeat: bool = False


def plan_steps(measure: Measure, begin: int = 0) -> Iterator[PlannedStep]:
    """Yields the steps of a run from number `begin` on: warm-up, the repeats without the profiler, then the profiled
    window. They are planned one by one, so that a long run starts as fast as a short one.

    The window counts as one more repeat. Its first `PROFILER_WARMUP` steps start the profiler and count as warm-up:
    their times are discarded.
    """
    return (_plan_step(measure, step) for step in range(begin, measure.in_all))


def _plan_step(measure: Measure, step: int) -> PlannedStep:
    """Step number `step` of a run."""
    if step < measure.warmup:
        return PlannedStep(step=step, repeat=0, warmup=True)
    repeat, index = divmod(step - measure.warmup, measure.steps)
    if repeat < measure.repeats:
        return PlannedStep(step=step, repeat=repeat, starts_repeat=index == 0)
    index = step - (measure.in_all - measure.in_window)
    return PlannedStep(
        step=step, repeat=measure.repeats, warmup=index < PROFILER_WARMUP, profiled=True, starts_repeat=index == 0
    )


def remaining_steps(planned_steps: Iterable[PlannedStep], warmup_steps: int) -> Iterator[PlannedStep]:
    """The steps as a new process takes them. `planned_steps`: those that are left of the run.

    A new process needs warm-up like the first one, so that `warmup_steps` steps are discarded again; of a profiled
    window it discards the first of the remaining steps, and a single remaining step is not profiled.
    """
    steps = iter(planned_steps)
    first_steps = list(islice(steps, PROFILER_WARMUP + 1))
    begin = first_steps[0].step if first_steps else 0
    for planned in chain(first_steps, steps):
        # Cold steps, whose times are discarded, are the first ones of this process.
        is_cold = planned.step < begin + (PROFILER_WARMUP if planned.profiled else warmup_steps)
        is_first = planned.step == begin or (planned.step == begin + warmup_steps and not planned.profiled)
        yield planned._replace(
            warmup=planned.warmup or is_cold,
            profiled=planned.profiled and len(first_steps) > PROFILER_WARMUP,
            starts_repeat=planned.starts_repeat or is_first,
        )


def leave_out(planned_steps: Iterable[PlannedStep], left_out: Container[int]) -> Iterator[PlannedStep]:
    """The steps without those whose numbers are `left_out`. The next one starts the repeat that such a step starts."""
    starts_repeat = False
    for planned in planned_steps:
        starts_repeat |= planned.starts_repeat
        if planned.step not in left_out:
            yield planned._replace(starts_repeat=starts_repeat)
            starts_repeat = False
