"""Whether a difference between two sides means anything, and what to keep in mind when it does."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from trainyard.compare.differences import command, differences
from trainyard.compare.same_work import compare_work
from trainyard.compare.side import Side
from trainyard.job import SCRIPT
from trainyard.record import Run
from trainyard.units import show_time


class Comparability(NamedTuple):
    """`reasons` why the two cannot be compared (none: they can), `doubts` why it cannot be told whether they did the
    same, `unsure` why it cannot be told which step is faster, `caveats` to print beside the difference."""

    reasons: tuple[str, ...]
    caveats: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    unsure: str = ""

    @property
    def same_work(self) -> bool:
        """Whether an account may be called better or worse."""
        return not self.reasons and not self.doubts


def comparable(a: Side, b: Side) -> Comparability:
    reasons: list[str] = []
    caveats: list[str] = []
    if a.world != b.world:
        reasons.append(f"{a.name} is of {a.world} ranks, {b.name} of {b.world}: each rank's share of the work differs.")
    caveats.extend(f"{side.name}: {side.left_out}" for side in (a, b) if side.left_out)
    work = compare_work(a, b)
    reasons.extend(work.reasons)
    if a.device != b.device:
        caveats.append(f"Different devices: {a.device or 'unnamed'} against {b.device or 'unnamed'}.")
    if a.mean.basis != b.mean.basis:
        caveats.append(f"{a.name} is {a.mean.basis}, {b.name} is {b.mean.basis}.")
    caveats.extend(
        f"The accounts of {side.name} are of profiled steps, which took {show_time(side.mean.wall_ns)}: the profiler's "
        "cost is in them, and in no plan."
        for side, other in ((a, b), (b, a))
        if other.plan and side.timed_ns and not side.plan
    )
    if a.mean.scope.aligned != b.mean.scope.aligned and not (a.plan or b.plan):
        caveats.append(
            "Only one side's clocks are aligned: waiting for late ranks is straggler there and comm on the other side."
        )
    if a.mean.scope.ranks != b.mean.scope.ranks and a.world == b.world and not (a.plan or b.plan):
        caveats.append(f"Different ranks: {_ranks(a)} against {_ranks(b)}.")
    caveats.extend(
        f"{side.name} has no full step: its figures are of a partial one." for side in (a, b) if side.mean.scope.partial
    )
    if a.job and b.job and not (a.run and b.run) and a.job.layout != b.job.layout:
        caveats.append(f"Layout: {a.job.layout} against {b.job.layout}.")
    if a.run and b.run:
        if SCRIPT in (a.run.job.workload, b.run.job.workload) and command(a.run) != command(b.run) and not work.doubts:
            caveats.append(f"Command: {command(a.run)} against {command(b.run)}.")
        caveats.extend(provenance(a.run, b.run))
    return Comparability(tuple(reasons), tuple(caveats), work.doubts, _opposed(a, b))


def _opposed(a: Side, b: Side) -> str:
    """Why the timed steps and the profiled ones, of which the accounts are, do not say the same; else empty."""
    timed, profiled = b.timed_ns - a.timed_ns, b.mean.wall_ns - a.mean.wall_ns
    if a.plan or b.plan or not (a.timed_ns and b.timed_ns and a.mean.wall_ns) or timed * profiled >= 0:
        return ""
    return (
        f"The timed step is {100 * timed / a.timed_ns:+.1f} %, the profiled step "
        f"{100 * profiled / a.mean.wall_ns:+.1f} %: the steps of one run vary by more than the runs differ. "
        "Measure both again, on an idle machine and with more steps."
    )


def _ranks(side: Side) -> str:
    ranks = side.mean.scope.ranks
    listed = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


_WORK = {"recipe seq_len", "recipe tokens_per_step"}
"""Differences that are reasons, not caveats."""
_SAID = ("command", "devices")
"""Kinds that `comparable` says itself."""
_SHOWN = 4
"""Differences of a kind that are said one by one."""


def provenance(before: Run, after: Run) -> list[str]:
    """What else differs between two runs, a line each."""
    said: list[str] = []
    for kind, found in groupby(differences(before, after), lambda one: one.kind):
        some = [one for one in found if one.name not in _WORK and kind not in _SAID]
        shown = some if kind in ("layout", "recipe") else some[:_SHOWN]
        said.extend(f"{one.name[0].upper()}{one.name[1:]}: {one.was} against {one.now}." for one in shown)
        if len(some) > len(shown):
            said.append(f"{kind.capitalize()}: {len(some) - len(shown)} more differences.")
    return said
