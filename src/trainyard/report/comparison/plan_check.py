"""A plan against the measurement of a run: whether the step is in the plan's prediction interval, and the memory."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard import units
from trainyard.ledger import WINDOW
from trainyard.report.comparison.compared_run import ComparedRun
from trainyard.store.run_summary import summarise

_CPU = "cpu"


class PlanCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted step of `predicted_ns`, its 80 % prediction interval from `low_ns` to `high_ns`, and the measured
    step. `clock`: whether that is the median step without the profiler or the mean profiled step. `position`: where the
    measured step is relative to the interval; empty if no step was measured, and `measured_ns` is then 0.

    `predicted_bytes`: memory of the fullest rank; `measured_bytes`: its measured peak, 0 if unknown; `memory`: what was
    measured, allocated device memory or resident memory of a process on a CPU, which a plan does not predict.
    `choice`: number of the compared plan among the `choices` of the file, from 1. `same_layout`: whether the run has
    the plan's layout, None if the run's layout is unknown.
    """

    predicted_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    clock: Literal["timed", "profiled", ""]
    position: Literal["inside", "below", "above", ""]
    predicted_bytes: int
    measured_bytes: int
    memory: Literal["allocated", "resident", ""]
    choice: int
    choices: int
    same_layout: bool | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The check in words: the step, then the memory."""
        interval = f"{units.show_time(self.low_ns)} to {units.show_time(self.high_ns)}"
        if not self.measured_ns:
            step = f"The plan predicts {units.show_time(self.predicted_ns)} ({interval}); no step was measured."
        else:
            clock = "timed" if self.clock == "timed" else "profiled"
            step = (
                f"The {clock} step of {units.show_time(self.measured_ns)} is {_POSITIONS[self.position]} the plan's "
                f"80 % interval of {interval}."
            )
        memory = ""
        if self.memory == "allocated":
            change = 100 * (self.measured_bytes - self.predicted_bytes) / self.predicted_bytes
            memory = (
                f"The peak of allocated memory is {units.show_size(self.measured_bytes)}; the plan predicts "
                f"{units.show_size(self.predicted_bytes)} ({change:+.1f} %)."
            )
        return tuple(filter(None, (step, memory)))


_POSITIONS = {"inside": "in", "below": "below", "above": "above"}
"""`position` -> preposition in a sentence."""


def check_plan_against(plan: ComparedRun, run: ComparedRun) -> PlanCheck | None:
    """The check of a plan by a run or traces; None unless `plan` is a plan and `run` is not."""
    if not (plan.plans and plan.side and plan.side.plan) or run.plans:
        return None
    predicted = plan.side.plan
    measured_ns, clock = _measured_step(run)
    memory_bytes = summarise(run.run).memory_bytes if run.run else 0
    vendors = {device.vendor for device in run.run.provenance.devices} if run.run else set()
    predicted_bytes = sum(predicted.memory.values())
    is_device_memory = bool(memory_bytes and predicted_bytes and vendors and _CPU not in vendors)
    plans = [record.plan for record in plan.plans.choices]
    return PlanCheck(
        predicted_ns=predicted.ledger.wall_ns,
        low_ns=predicted.low,
        high_ns=predicted.high,
        measured_ns=measured_ns,
        clock=clock,
        position=_position(measured_ns, predicted.low, predicted.high),
        predicted_bytes=predicted_bytes,
        measured_bytes=memory_bytes,
        memory="allocated" if is_device_memory else "resident" if memory_bytes else "",
        choice=plans.index(predicted) + 1,
        choices=len(plans),
        same_layout=run.side.job.layout == predicted.job.layout if run.side and run.side.job else None,
    )


def _measured_step(run: ComparedRun) -> tuple[int, Literal["timed", "profiled", ""]]:
    """(ns, clock) of the measured step: without the profiler if it was timed, else the mean full profiled step; (0,
    empty) if there is neither."""
    if timed_ns := summarise(run.run).step_ns if run.run else 0:
        return timed_ns, "timed"
    if run.side and run.side.mean.wall_ns and run.side.mean.scope.steps != (WINDOW,):
        return run.side.mean.wall_ns, "profiled"
    return 0, ""


def _position(measured_ns: int, low_ns: int, high_ns: int) -> Literal["inside", "below", "above", ""]:
    """Where a measured step is relative to the interval; empty if none was measured."""
    if not measured_ns:
        return ""
    return "below" if measured_ns < low_ns else "above" if measured_ns > high_ns else "inside"
