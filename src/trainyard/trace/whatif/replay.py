"""Replay of a measured trace: its dependency graph, built once, and the time that any change of it recovers.

An op is a node of the graph: a kernel, a stretch of host time, or a rank's share of a collective (`profile_ops.py`). A
change shortens or removes ops, or dependencies between them. A part is a labelled period of a rank's window (a step, or
the time before the first one).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import sqrt
from typing import NamedTuple

import msgspec

from trainyard.change import Change
from trainyard.events import I64, Events
from trainyard.ledger import WINDOW
from trainyard.machine import Device
from trainyard.stats import student_t
from trainyard.trace.align.steps import StepPart, select_averaged
from trainyard.trace.booking.book_rank import ClassifiedRank, RankTrace
from trainyard.trace.measured_trace import MeasuredTrace
from trainyard.trace.whatif.apply_change import Supposed
from trainyard.trace.whatif.dependencies import build_profile, whole_intervals
from trainyard.trace.whatif.dependency_graph import replay_graph
from trainyard.trace.whatif.profile_ops import Profile
from trainyard.trace.whatif.replayed_events import replay_events
from trainyard.trace.whatif.replayed_steps import replay_parts

_CONFIDENCE = 0.8


class Times(NamedTuple):
    """The replayed start and stop of each op of a profile, ns."""

    start: I64
    stop: I64


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """The time that changes recover. `ns`: by how much the mean step is shorter, negative if it is longer."""

    ns: int
    interval_ns: tuple[int, int] | None = None
    """The 80 % interval of `ns` from its variation over steps (Student's t); None for fewer than two steps. Other
    errors of a replay are not in it."""
    steps: int = 0
    """Number of full steps that were compared."""


class Replay:
    """The dependency graph of a measured trace. Its first use loads all ranks and builds the graph, once."""

    def __init__(self, measured: MeasuredTrace) -> None:
        self.measured = measured
        self.aligned = measured.alignment.aligned != "no"

    @cached_property
    def ranks(self) -> tuple[RankTrace, ...]:
        """All ranks of the trace."""
        return tuple(self.measured.ranks)

    @cached_property
    def is_whole_window(self) -> bool:
        """Whether the recording was booked as one part, without steps."""
        return all(part.label == WINDOW for rank in self.ranks for part in rank.parts)

    @cached_property
    def _intervals(self) -> tuple[ClassifiedRank, ...]:
        """The intervals of each rank as recorded."""
        return tuple(whole_intervals(rank) for rank in self.ranks)

    @cached_property
    def profile(self) -> Profile:
        """The ops of all ranks and their dependencies."""
        return build_profile(self._intervals, self.aligned)

    def times(self, changes: Sequence[Change], device: Device | None = None) -> Times:
        """Replays all ops with the changes applied, in order. `device`: the device of rooflines; None for the one that
        each rank's file names. Raises `BadInput` for changes that are invalid or match nothing in the traces."""
        state = Supposed(self.profile, self.measured, self.ranks)
        for change in changes:
            state.apply(change, device)
        return Times(*replay_graph(state.graph, state.length, state.lag))

    def events(self, times: Times) -> list[Events]:
        """The events of each rank as they would have been recorded."""
        return [replay_events(rank.events, index, self.profile, *times) for index, rank in enumerate(self.ranks)]

    def recovery(self, times: Times, since: Times | None = None) -> Recovery:
        """By how much the mean step is shorter in a replay than measured, over the ranks that the mean covers.

        `times`: as from `times`; `since`: those of a replay that is compared with instead of the measured steps.
        """
        return compare_steps(self._counted_parts(since), self._counted_parts(times))

    def _counted_parts(self, times: Times | None) -> list[Sequence[StepPart]]:
        """The parts of each rank that the mean covers, in a replay or, for None, as measured."""
        parts: Sequence[Sequence[StepPart]] = [rank.parts for rank in self.ranks]
        if times is not None:
            parts = replay_parts(
                self._intervals, self.profile, *times, shared=self.aligned, is_whole_window=self.is_whole_window
            )
        return [parts[index] for index in self.measured.comparable_indices]


def compare_steps(before: Sequence[Sequence[StepPart]], after: Sequence[Sequence[StepPart]]) -> Recovery:
    """By how much the mean full step of `after` is shorter than that of `before`. Both: the parts of each rank.

    The interval is `ns` +- t * s / sqrt(n) of Student's t, with the standard deviation s of the n differences of steps
    with the same label.
    """
    saved_ns = _mean_ns(before) - _mean_ns(after)
    ns_before, ns_after = _ns_by_step(before), _ns_by_step(after)
    labels = [label for label in ns_before if label in ns_after]
    saved_by_step = [ns_before[label] - ns_after[label] for label in labels]
    if len(labels) < 2:
        return Recovery(ns=saved_ns, steps=len(labels))
    mean = sum(saved_by_step) / len(labels)
    variance = sum((ns - mean) ** 2 for ns in saved_by_step) / (len(labels) - 1)
    half_width = student_t.quantile((1 + _CONFIDENCE) / 2, len(labels) - 1) * sqrt(variance / len(labels))
    interval = (round(saved_ns - half_width), round(saved_ns + half_width))
    return Recovery(ns=saved_ns, interval_ns=interval, steps=len(labels))


def full_parts(parts_by_rank: Sequence[Sequence[StepPart]]) -> list[StepPart]:
    """The parts that a mean over these ranks covers, rank by rank."""
    masks = select_averaged(parts_by_rank)
    return [
        part
        for parts, is_averaged in zip(parts_by_rank, masks)
        for part, averages in zip(parts, is_averaged)
        if averages
    ]


def _mean_ns(parts_by_rank: Sequence[Sequence[StepPart]]) -> int:
    """The wall time of the mean ledger of these parts, ns."""
    counted = full_parts(parts_by_rank)
    return sum(part.stop - part.start for part in counted) // len(counted)


def _ns_by_step(parts_by_rank: Sequence[Sequence[StepPart]]) -> dict[str, float]:
    """Label -> mean over ranks of the step's time in ns, for the parts that count."""
    ns_by_label: dict[str, list[int]] = {}
    for part in full_parts(parts_by_rank):
        ns_by_label.setdefault(part.label, []).append(part.stop - part.start)
    return {label: sum(ns) / len(ns) for label, ns in ns_by_label.items()}
