"""Whether the ranks' clocks agree, or can be aligned.

Ranks on one host share its clock. Across hosts, clock offsets are solved from the common ends of NCCL's and RCCL's
symmetric collectives. Members of a gloo collective do not end together, so that gloo collectives are not used.

A survey is the part of a rank's trace that alignment needs: its metadata (`facts`), its window (start and stop of the
recording, ns) and its collectives. A rank index is the position of a survey in the list. A meeting is a collective
whose members on all ranks were matched. A clock is that of a host, or of a rank whose host is unknown, numbered from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from trainyard import units
from trainyard.events import I64
from trainyard.stats.medians import lower_median
from trainyard.trace.align.clocks import ClockCorrection, ClockResidual, solve_clocks
from trainyard.trace.align.matching import Meetings, meetings
from trainyard.trace.align.survey import Survey

Aligned = Literal["no", "host", "collectives"]

_MIN_SHARED_COLLECTIVES = 3
_CONSEQUENCE = "waiting for late ranks is counted as communication, and no straggler is reported."


class Alignment(NamedTuple):
    """`aligned`: a key of words.ALIGNMENTS; `why`: the reason in a sentence; `clocks`: the correction of the timestamps
    of each rank index. `residual`: how far the corrected ends of matched collectives differ, only if clocks were solved
    from collectives."""

    aligned: Aligned
    why: str
    clocks: tuple[ClockCorrection, ...]
    residual: ClockResidual | None = None


def align_clocks(surveys: Sequence[Survey]) -> Alignment:
    """Aligns the ranks' clocks: by host if the files show that all ranks ran on one, else by collectives if the
    solution is reliable; otherwise the clocks stay as they are and `aligned` is `no`."""
    identity = tuple(ClockCorrection() for _ in surveys)
    if len(surveys) == 1:
        return _align_single_rank(surveys[0])
    if reason := _describe_shared_host(surveys):
        if not _windows_overlap(surveys, identity):
            return Alignment("no", f"The ranks' windows do not overlap; {_CONSEQUENCE}", identity)
        return Alignment("host", reason, identity)
    solved = _align_by_collectives(surveys)
    if isinstance(solved, str):
        return Alignment(
            "no", f"The files do not show that the ranks share a clock, and {solved}; {_CONSEQUENCE}", identity
        )
    return solved


def _align_single_rank(only: Survey) -> Alignment:
    """The alignment if there is one file: nothing to align, unless the job has more ranks than that."""
    world = only.facts.world
    # A file without a world size that contains collectives belongs to a job of several ranks.
    has_peers = not world and len(only.row) > 0
    total = str(world) if world > 1 else "several" if has_peers else ""
    if not total:
        return Alignment("host", "The job has one rank.", (ClockCorrection(),))
    reason = f"This is one rank of {total}: the file does not show when its peers arrived; {_CONSEQUENCE}"
    return Alignment("no", reason, (ClockCorrection(),))


def _describe_shared_host(surveys: Sequence[Survey]) -> str:
    """How the files show that all ranks ran on one host, as a sentence; empty if they do not."""
    first, n = surveys[0].facts, len(surveys)
    hosts = {survey.facts.host_name for survey in surveys}
    if len(hosts) == 1 and "" not in hosts:
        return f"All {n} ranks ran on one host and share its clock."
    devices = {survey.facts.device_index for survey in surveys}
    if hosts == {""} and first.device_index >= 0 and len(devices) == first.world == first.devices == n:
        return f"{n} ranks ran on {len(devices)} different devices of a host with {first.devices}, and share its clock."
    return ""


def _align_by_collectives(surveys: Sequence[Survey]) -> Alignment | str:
    """The alignment with solved clocks, or the reason why they cannot be solved: a part of a sentence."""
    if not all(survey.on_device for survey in surveys):
        return "collectives on CPUs do not end at the same time on all members"
    hosts = [survey.facts.host_name or f"rank {survey.facts.rank}" for survey in surveys]
    number_of_host = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    clock_of_rank = np.array([number_of_host[host] for host in hosts], np.int64)  # number of the clock, by rank index
    meetings_between_clocks = _select_cross_clock(meetings(surveys), clock_of_rank)
    if not meetings_between_clocks.size:
        return "no collective could be matched across hosts"
    end_counts = np.bincount(clock_of_rank[meetings_between_clocks.rank_index], minlength=len(number_of_host))
    for host, number in number_of_host.items():
        if end_counts[number] < _MIN_SHARED_COLLECTIVES:
            return (
                f"{host} has {end_counts[number]} collectives in common with the others, fewer than "
                f"{_MIN_SHARED_COLLECTIVES}"
            )
    solution = solve_clocks(meetings_between_clocks, clock_of_rank)
    # A clock that no chain of meetings connects to the first one has no correction.
    unconnected = next((host for host, number in number_of_host.items() if solution.clocks[number] is None), None)
    if unconnected is not None:
        return f"no chain of collectives connects {unconnected} to {next(iter(number_of_host))}"
    clocks = tuple(clock for number in clock_of_rank if (clock := solution.clocks[number]) is not None)
    doubt = _reason_unreliable(surveys, meetings_between_clocks, clocks, solution.residual)
    reason = _describe_solution(solution.residual, len(number_of_host), clocks)
    return doubt or Alignment(aligned="collectives", why=reason, clocks=clocks, residual=solution.residual)


def _select_cross_clock(met: Meetings, clock_of_rank: I64) -> Meetings:
    """The meetings with members on more than one clock. `clock_of_rank[i]`: number of the clock of rank index i."""
    clock_of_member = clock_of_rank[met.rank_index]
    first = met.first[:-1]  # position of each meeting's first member
    return met.only(np.minimum.reduceat(clock_of_member, first) < np.maximum.reduceat(clock_of_member, first))


def _reason_unreliable(
    surveys: Sequence[Survey], met: Meetings, clocks: Sequence[ClockCorrection], residual: ClockResidual
) -> str:
    """Why the solution is not reliable, as a part of a sentence; empty if it is. `met`: the meetings from which the
    `clocks` (by rank index) were solved; `residual`: of the solution, ns."""
    # `covers`: the corrected timestamps fit into 64 bits.
    if not all(clock.covers(*survey.facts.span) for survey, clock in zip(surveys, clocks)):
        return "their timestamps are too far apart to be aligned"
    shortest_ns = np.minimum.reduceat(met.stop - met.start, met.first[:-1])  # of the members of each meeting
    typical_ns = int(lower_median(np.sort(shortest_ns)))
    if 2 * residual.median > typical_ns:
        return (
            f"after alignment the ends of {residual.collectives} matched collectives still differ by "
            f"{units.show_time(residual.median)} (median), while a collective takes {units.show_time(typical_ns)}"
        )
    if not _windows_overlap(surveys, clocks):
        return "their windows do not overlap after alignment"
    return ""


def _windows_overlap(surveys: Sequence[Survey], clocks: Sequence[ClockCorrection]) -> bool:
    """Whether all ranks' windows, on their corrected clocks, have an instant in common."""
    starts = [clock.when(survey.window[0]) for survey, clock in zip(surveys, clocks)]
    stops = [clock.when(survey.window[1]) for survey, clock in zip(surveys, clocks)]
    return max(starts) <= min(stops)


def _describe_solution(residual: ClockResidual, hosts: int, clocks: Sequence[ClockCorrection]) -> str:
    """Why the clocks are taken as aligned, as a sentence. `hosts`: number of clocks."""
    drifting = " and drifts" if any(clock.drift for clock in clocks) else ""
    return (
        f"Offsets{drifting} of {hosts} clocks were solved from the common ends of {residual.collectives} collectives; "
        f"the residual is {units.show_time(residual.median)} (median) and {units.show_time(residual.p95)} "
        "(95th percentile)."
    )
