"""Whether a difference between two sides means anything, and what to keep in mind when it does."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from trainyard.compare.side import Side
from trainyard.compare.work import command, compare_work
from trainyard.job import SCRIPT
from trainyard.record import Run


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
    work = compare_work(a, b)
    reasons.extend(work.reasons)
    if a.device != b.device:
        caveats.append(f"Different devices: {a.device or 'unnamed'} against {b.device or 'unnamed'}.")
    if a.mean.basis != b.mean.basis:
        caveats.append(f"{a.name} is {a.mean.basis}, {b.name} is {b.mean.basis}.")
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
        caveats.extend(_provenance(a.run, b.run))
    return Comparability(tuple(reasons), tuple(caveats), work.doubts, _opposed(a, b))


def _opposed(a: Side, b: Side) -> str:
    """Why the timed steps and the profiled ones, of which the accounts are, do not say the same; else empty."""
    timed, profiled = b.timed_ns - a.timed_ns, b.mean.wall_ns - a.mean.wall_ns
    if not (a.timed_ns and b.timed_ns and a.mean.wall_ns) or timed * profiled >= 0:
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


_WORK = {"seq_len", "tokens_per_step"}
"""Keys of a recipe that are reasons, not caveats."""


def _provenance(before: Run, after: Run) -> list[str]:
    """What else differs between two runs, a line each."""
    one, other = before.provenance, after.provenance
    said: list[str] = []
    if before.job.layout != after.job.layout:
        said.append(f"Layout: {before.job.layout} against {after.job.layout}.")
    was, now = msgspec.to_builtins(before.job.recipe), msgspec.to_builtins(after.job.recipe)
    for key in was:
        if key not in _WORK and was[key] != now[key]:
            said.append(f"Recipe {key}: {was[key]} against {now[key]}.")
    for what, was, now in (
        ("Code", one.code, other.code),
        ("Torch", one.torch_build, other.torch_build),
        ("Driver", one.driver, other.driver),
        ("Host", one.host, other.host),
        ("Environment", one.environment, other.environment),
        ("Packages", one.packages, other.packages),
    ):
        keys = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        for key in keys[:4]:
            said.append(f"{what} {key}: {was.get(key, 'absent')} against {now.get(key, 'absent')}.")
        if len(keys) > 4:
            said.append(f"{what}: {len(keys) - 4} more differences.")
    return said
