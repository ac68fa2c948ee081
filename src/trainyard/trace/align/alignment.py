"""Whether ranks' clocks agree, or can be made to.

Clocks of ranks on one host are one clock. Across hosts they are solved from the common ends of NCCL's and RCCL's
symmetric collectives; gloo's members do not end together, and nothing is solved from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from trainyard import units
from trainyard.events import I64
from trainyard.stats.medians import lower_median
from trainyard.trace.align.clocks import ClockCorrection, ClockResidual, solve
from trainyard.trace.align.matching import Meetings, meetings
from trainyard.trace.align.survey import Survey

Aligned = Literal["no", "host", "collectives"]

_LEAST_MET = 3
_STAYS = "waiting for a late peer stays in comm and no rank is blamed."


class Alignment(NamedTuple):
    """`aligned` as in words.ALIGNMENTS, the reason in a sentence, and what to correct each rank's stamps by.
    `residual` where clocks were solved."""

    aligned: Aligned
    why: str
    clocks: tuple[ClockCorrection, ...]
    residual: ClockResidual | None = None


def alignment(surveys: Sequence[Survey]) -> Alignment:
    """By host where the files show that all ranks ran on one, else by collectives where that can be trusted."""
    as_they_are = tuple(ClockCorrection() for _ in surveys)
    if len(surveys) == 1:
        return _alone(surveys[0])
    if why := _one_host(surveys):
        if not _overlap(surveys, as_they_are):
            return Alignment("no", f"The ranks' windows do not overlap: {_STAYS}", as_they_are)
        return Alignment("host", why, as_they_are)
    solved = _from_collectives(surveys)
    if isinstance(solved, str):
        return Alignment(
            "no", f"The files do not show that the ranks share a clock, and {solved}: {_STAYS}", as_they_are
        )
    return solved


def _alone(only: Survey) -> Alignment:
    world = only.facts.world
    # A file that does not state the number of ranks, and yet communicates, is of more than one.
    several = not world and len(only.row) > 0
    of = str(world) if world > 1 else "several" if several else ""
    if not of:
        return Alignment("host", "One rank alone.", (ClockCorrection(),))
    why = f"One rank of {of}: when its peers arrived is not in the file, so waiting for them stays in comm."
    return Alignment("no", why, (ClockCorrection(),))


def _one_host(surveys: Sequence[Survey]) -> str:
    """How the files show that all ranks ran on one host; empty where they do not."""
    first, n = surveys[0].facts, len(surveys)
    hosts = {one.facts.host_name for one in surveys}
    if len(hosts) == 1 and "" not in hosts:
        return f"All {n} ranks ran on one host and share its clock."
    devices = {one.facts.device_index for one in surveys}
    if hosts == {""} and first.device_index >= 0 and len(devices) == first.world == first.devices == n:
        return f"{n} ranks on {len(devices)} different devices of a host with {first.devices}: one clock."
    return ""


def _from_collectives(surveys: Sequence[Survey]) -> Alignment | str:
    """Clocks solved, or why they are not."""
    if not all(one.on_device for one in surveys):
        return "members of a CPU's collectives do not end together"
    hosts = [one.facts.host_name or f"rank {one.facts.rank}" for one in surveys]
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    unit_of = np.array([numbers[host] for host in hosts], np.int64)
    met = _across(meetings(surveys), unit_of)
    if not met.size:
        return "no collective could be matched across them"
    ends = np.bincount(unit_of[met.place], minlength=len(numbers))
    few = next((host for host, number in numbers.items() if ends[number] < _LEAST_MET), None)
    if few is not None:
        return f"{few} shows {ends[numbers[few]]} collectives that the others show too, fewer than {_LEAST_MET}"
    solved = solve(met, unit_of)
    apart = next((host for host, number in numbers.items() if solved.clocks[number] is None), None)
    if apart is not None:
        return f"{apart} meets {next(iter(numbers))} in no chain of collectives"
    clocks = tuple(clock for number in unit_of if (clock := solved.clocks[number]) is not None)
    doubt = _doubt(surveys, met, clocks, solved.residual)
    return doubt or Alignment("collectives", _told(solved.residual, len(numbers), clocks), clocks, solved.residual)


def _across(met: Meetings, unit_of: I64) -> Meetings:
    """Those with members on more than one clock."""
    unit = unit_of[met.place]
    return met.only(np.minimum.reduceat(unit, met.first[:-1]) < np.maximum.reduceat(unit, met.first[:-1]))


def _doubt(surveys: Sequence[Survey], met: Meetings, clocks: Sequence[ClockCorrection], residual: ClockResidual) -> str:
    """Why the solution is not to be believed; empty where it is."""
    if not all(clock.covers(*one.facts.span) for one, clock in zip(surveys, clocks)):
        return "their stamps lie too far apart for any clock"
    lengths = np.minimum.reduceat(met.stop - met.start, met.first[:-1])
    typical = int(lower_median(np.sort(lengths)))
    if 2 * residual.median > typical:
        return (
            f"the ends of {residual.collectives} matched collectives lie {units.show_time(residual.median)} (median) "
            f"apart however the clocks are set, while a collective lasts {units.show_time(typical)}"
        )
    if not _overlap(surveys, clocks):
        return "their windows do not overlap when the ends of collectives do"
    return ""


def _overlap(surveys: Sequence[Survey], clocks: Sequence[ClockCorrection]) -> bool:
    """Whether all ranks' windows have an instant in common."""
    starts = [clock.when(one.window[0]) for one, clock in zip(surveys, clocks)]
    stops = [clock.when(one.window[1]) for one, clock in zip(surveys, clocks)]
    return max(starts) <= min(stops)


def _told(residual: ClockResidual, hosts: int, clocks: Sequence[ClockCorrection]) -> str:
    drifting = " and drifts" if any(clock.drift for clock in clocks) else ""
    return (
        f"Offsets{drifting} of {hosts} clocks were solved from the common ends of {residual.collectives} collectives; "
        f"after that the ends lie {units.show_time(residual.median)} (median) and {units.show_time(residual.p95)} "
        "(95th percentile) from the common one."
    )
