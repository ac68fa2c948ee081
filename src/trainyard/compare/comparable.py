"""Whether two sides can be compared, and the caveats of the comparison.

A side is one of the two recordings that are compared: a run, a trace, a ledger file or a plan. `mean` is its mean
ledger, the time of a step by account; `timed_ns` its step time without the profiler, 0 if unknown.
"""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from trainyard import units, words
from trainyard.compare.differences import describe_command, find_differences
from trainyard.compare.same_work import compare_work
from trainyard.compare.side import Side
from trainyard.job import SCRIPT
from trainyard.record import Run
from trainyard.units import show_time


class Comparability(NamedTuple):
    """The result of `check_comparability`, as sentences for the user.

    `reasons`: why the two sides cannot be compared, empty if they can. `doubts`: why it is unknown whether they did the
    same work. `unsure`: why it is unknown which step is faster. `caveats`: differences to print with the comparison."""

    reasons: tuple[str, ...]
    caveats: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    unsure: str = ""

    @property
    def same_work(self) -> bool:
        """Whether the two did the same work, so that an account's change can be judged better or worse."""
        return not self.reasons and not self.doubts


def check_comparability(a: Side, b: Side) -> Comparability:
    """Reasons not to compare the two sides (other world size, other work), and caveats for reading the comparison."""
    reasons: list[str] = []
    caveats: list[str] = []
    if a.world != b.world:
        reasons.append(f"{a.name} has {a.world} ranks, {b.name} has {b.world}: each rank's share of the work differs.")
    caveats.extend(f"{side.name}: {side.left_out}" for side in (a, b) if side.left_out)
    work = compare_work(a, b)
    reasons.extend(work.reasons)
    if bool(a.plan) != bool(b.plan):
        caveats.extend(f"{side.name} is a plan for the machine {side.device}." for side in (a, b) if side.plan)
    elif a.device != b.device:
        caveats.append(f"Different devices: {a.device or 'unnamed'} against {b.device or 'unnamed'}.")
    if a.mean.basis != b.mean.basis:
        caveats.append(f"{a.name} is {a.mean.basis}, {b.name} is {b.mean.basis}.")
    caveats.extend(
        f"The accounts of {side.name} are from profiled steps of {show_time(side.mean.wall_ns)}, which include the "
        "profiler's overhead; a plan does not."
        for side, other in ((a, b), (b, a))
        if other.plan and side.timed_ns and not side.plan
    )
    if a.mean.scope.aligned != b.mean.scope.aligned and not (a.plan or b.plan):
        caveats.append(
            "Only one side's clocks are aligned: waiting for late ranks is booked as straggler there and as comm on "
            "the other side."
        )
    if a.mean.scope.ranks != b.mean.scope.ranks and a.world == b.world and not (a.plan or b.plan):
        caveats.append(f"Different ranks: {_show_ranks(a)} against {_show_ranks(b)}.")
    caveats.extend(
        f"{side.name} has no full step: its figures are from a partial one."
        for side in (a, b)
        if side.mean.scope.partial
    )
    if a.job and b.job and not (a.run and b.run) and a.job.layout != b.job.layout:
        caveats.append(f"Layout: {a.job.layout} against {b.job.layout}.")
    if a.run and b.run:
        # A script's command line may change its work; `compare_work` reports that as a doubt if the evidence is open.
        if (
            SCRIPT in (a.run.job.workload, b.run.job.workload)
            and describe_command(a.run) != describe_command(b.run)
            and not work.doubts
        ):
            caveats.append(f"Command: {describe_command(a.run)} against {describe_command(b.run)}.")
        caveats.extend(list_differences(a.run, b.run))
    return Comparability(
        reasons=tuple(reasons), caveats=tuple(caveats), doubts=work.doubts, unsure=_find_contradiction(a, b)
    )


def _find_contradiction(a: Side, b: Side) -> str:
    """The reason why the change is unclear if the timed steps and the profiled steps changed in opposite directions;
    else empty. The accounts come from the profiled steps."""
    timed_change_ns, profiled_change_ns = b.timed_ns - a.timed_ns, b.mean.wall_ns - a.mean.wall_ns
    if (
        a.plan
        or b.plan
        or not (a.timed_ns and b.timed_ns and a.mean.wall_ns)
        or timed_change_ns * profiled_change_ns >= 0
    ):
        return ""
    return (
        f"The timed step is {100 * timed_change_ns / a.timed_ns:+.1f} %, the profiled step "
        f"{100 * profiled_change_ns / a.mean.wall_ns:+.1f} %: the steps of one run vary by more than the runs differ. "
        "Measure both again, on an idle machine and with more steps."
    )


def _show_ranks(side: Side) -> str:
    """The ranks of a side's ledger, as `ranks 0, 1, 2`; the first eight."""
    ranks = side.mean.scope.ranks
    listed = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


_WORK_DIFFERENCES = {"recipe seq_len", "recipe tokens_per_step"}
"""Differences that are reasons, not caveats."""
_KINDS_REPORTED_APART = ("command", "devices")
"""Kinds that `check_comparability` reports itself."""
_MAX_PER_KIND = 4
"""Differences of one kind that are listed; the rest are counted."""


def list_differences(before: Run, after: Run) -> list[str]:
    """The differences between two runs that are neither reasons nor reported elsewhere, one line each: all of the
    layout and the recipe, and at most `_MAX_PER_KIND` of each other kind."""
    lines = _clock_difference(before, after)
    for kind, group in groupby(find_differences(before, after), lambda difference: difference.kind):
        remaining = [item for item in group if item.name not in _WORK_DIFFERENCES and kind not in _KINDS_REPORTED_APART]
        listed = remaining if kind in ("layout", "recipe") else remaining[:_MAX_PER_KIND]
        lines.extend(f"{item.name[0].upper()}{item.name[1:]}: {item.before} against {item.after}." for item in listed)
        if len(remaining) > len(listed):
            lines.append(f"{kind.capitalize()}: {len(remaining) - len(listed)} more differences.")
    return lines


def _clock_difference(before: Run, after: Run) -> list[str]:
    """A line if other clocks timed the steps of the two runs, which then differ by launches and waits; else none."""
    clocks = [units.listed([words.STEP_CLOCKS[clock].label for clock in run.step_clocks], 3) for run in (before, after)]
    return [f"Clock of the steps: {' against '.join(clocks)}."] if all(clocks) and clocks[0] != clocks[1] else []
