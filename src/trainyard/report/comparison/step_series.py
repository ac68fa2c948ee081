"""The loss and the time of each step of a run as curves of bounded size."""

from __future__ import annotations

from math import isfinite

import msgspec

from trainyard.record import Run

_MOST_POINTS = 1000
"""Points of a curve above which it is reduced."""


class StepSeries(msgspec.Struct, frozen=True, kw_only=True):
    """A value by step. `steps`: ascending, from 1; `values`: of the same length. `recorded`: number of steps before the
    reduction, which keeps the least and the greatest value of neighbouring steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    recorded: int


class RunSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of a run. `loss`: of rank 0, in nats per token for a language model; `step_ns`: the slowest rank's
    time of each timed step, without the profiler. None if there is no such value."""

    loss: StepSeries | None = None
    step_ns: StepSeries | None = None


def collect_series(run: Run | None) -> RunSeries:
    """The curves of a stored run; without any for traces and plans."""
    if run is None:
        return RunSeries()
    losses = {
        sample.step + 1: sample.loss
        for sample in run.kept()
        if sample.rank == 0 and sample.loss is not None and isfinite(sample.loss)
    }
    walls_ns: dict[int, float] = {}
    for sample in run.measured():
        walls_ns[sample.step + 1] = max(walls_ns.get(sample.step + 1, 0), sample.wall_ns)
    return RunSeries(loss=_series(losses), step_ns=_series(walls_ns))


def _series(by_step: dict[int, float]) -> StepSeries | None:
    """The curve of the values by step; None for fewer than two steps."""
    if len(by_step) < 2:
        return None
    steps = sorted(by_step)
    kept = _reduce(steps, by_step) if len(steps) > _MOST_POINTS else steps
    return StepSeries(steps=tuple(kept), values=tuple(by_step[step] for step in kept), recorded=len(steps))


def _reduce(steps: list[int], by_step: dict[int, float]) -> list[int]:
    """The steps with the least and the greatest value of each group of neighbouring steps, so that spikes stay."""
    size = -(-2 * len(steps) // _MOST_POINTS)
    groups = [steps[start : start + size] for start in range(0, len(steps), size)]
    kept = {extreme(group, key=by_step.__getitem__) for group in groups for extreme in (min, max)}
    return sorted(kept)
