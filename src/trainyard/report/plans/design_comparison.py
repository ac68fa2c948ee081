"""The result of `trainyard plan design`: predicted steps of a suite of trainings on hypothetical machines."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import msgspec

SCHEMA = "trainyard/designs/1"
ALL = "all"
"""The row of all changes together."""


class DesignTraining(msgspec.Struct, frozen=True, kw_only=True):
    """A training of the suite on the unchanged machine. `batch`: samples per step; `seq_len`: tokens of a sample, 1 for
    images. `step_ns`, `layout`: of the fastest layout; None and empty if there is none, for which `reason` is."""

    name: str
    model: str
    devices: int
    batch: int
    seq_len: int
    step_ns: int | None = None
    layout: str = ""
    reason: str = ""


class DesignStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step of one training on one changed machine, with the fastest layout there. `speedup`: the step on the
    unchanged machine over this one. None and empty if no layout fits, for which `reason` is."""

    step_ns: int | None = None
    speedup: float | None = None
    layout: str = ""
    reason: str = ""


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """A changed machine. `factors`: name of each change -> its factor; above 1 is an improvement. `steps`: in the order
    of the trainings. `mean_speedup`: geometric mean over the trainings that fit the unchanged machine; None if one of
    them has no step here. A device may cost `mean_speedup` times as much for the same cost per token. `price_change`:
    how much more the device costs, as a share; with it, `cost_per_token` is relative to the unchanged machine."""

    name: str
    label: str
    factors: dict[str, float]
    steps: tuple[DesignStep, ...]
    mean_speedup: float | None = None
    price_change: float | None = None
    cost_per_token: float | None = None


class DesignComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Designs of a machine, the largest mean speed-up first, all changes together last. `device`: its full name;
    `constants`: the set of fitted constants, which stay the same unless a change divides them. `assumptions`: sentences
    on the conditions of the comparison."""

    schema: Literal["trainyard/designs/1"] = SCHEMA
    machine: str
    device: str
    framework: str
    constants: str
    trainings: tuple[DesignTraining, ...]
    designs: tuple[Design, ...]
    assumptions: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The change with the largest mean speed-up, if it is one."""
        single = [design for design in self.designs if design.name != ALL and design.mean_speedup is not None]
        if not single:
            return f"No change of {self.machine} has a step for every training."
        best = single[0]
        if (best.mean_speedup or 0.0) <= 1:
            return "No single change makes the steps faster on average."
        return f"The largest gain of one change: {best.label}, {show_gain(best.mean_speedup)} % on average."


def mean_speedup(trainings: Sequence[DesignTraining], steps: Sequence[DesignStep]) -> float | None:
    """The geometric mean of the speed-ups of the trainings that fit the unchanged machine; None if one is missing."""
    speedups = [step.speedup for training, step in zip(trainings, steps, strict=True) if training.step_ns is not None]
    known = [speedup for speedup in speedups if speedup is not None]
    return prod(known) ** (1 / len(known)) if known and len(known) == len(speedups) else None


def show_gain(speedup: float | None) -> str:
    """A speed-up as a gain in whole percent, without the unit: `1.12` -> `12`; empty if unknown."""
    if speedup is None:
        return ""
    percent = 100 * (speedup - 1)
    if percent and abs(percent) < 1:
        return "<1" if percent > 0 else ">-1"
    return f"{percent:.0f}"
