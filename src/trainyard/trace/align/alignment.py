"""Whether the ranks' clocks agree, or can be aligned.

Ranks on one host share its clock. Across hosts, clock offsets are solved from the common ends of NCCL's and RCCL's
symmetric collectives. Members of a gloo collective do not end together: offsets are bounded instead
(`clock_bounds.py`), and used only if the bounds are tight compared with the waiting or the step.

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
from trainyard.trace.align.clock_bounds import MAX_STAMP_NS, Comparison, bound_offsets
from trainyard.trace.align.clocks import ClockCorrection, ClockResidual, solve_clocks
from trainyard.trace.align.matching import Meetings, meetings
from trainyard.trace.align.survey import Survey

Aligned = Literal["no", "host", "collectives", "bounds"]

_MIN_SHARED_COLLECTIVES = 3
_MIN_WAIT_RATIO, _MIN_STEP_RATIO = 4, 100
"""Offsets may be unknown by a quarter of the median wait, or by one percent of a step."""
_CONSEQUENCE = "waiting for late ranks is counted as communication, and no straggler is reported."


class Alignment(NamedTuple):
    """`aligned`: a key of words.ALIGNMENTS; `why`: the reason in a sentence; `clocks`: the correction of the timestamps
    of each rank index. `residual`: how far the corrected ends of matched collectives differ, only if clocks were solved
    from collectives. `uncertainty_ns`: by how much offsets may be wrong, at most, only if they were bounded."""

    aligned: Aligned
    why: str
    clocks: tuple[ClockCorrection, ...]
    residual: ClockResidual | None = None
    uncertainty_ns: int | None = None


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
    if isinstance(solved, Alignment):
        return solved
    bounded = _align_by_bounds(surveys)
    if isinstance(bounded, Alignment):
        return bounded
    reason = f"The files do not show that the ranks share a clock, {solved}, and {bounded}; {_CONSEQUENCE}"
    return Alignment("no", reason, identity)


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
    number_of_host, clock_of_rank = _number_clocks(surveys)
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


def _number_clocks(surveys: Sequence[Survey]) -> tuple[dict[str, int], I64]:
    """(host name, or `rank N` if it is unknown -> number of its clock; number of the clock of each rank index)."""
    hosts = [survey.facts.host_name or f"rank {survey.facts.rank}" for survey in surveys]
    number_of_host = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    return number_of_host, np.array([number_of_host[host] for host in hosts], np.int64)


def _align_by_bounds(surveys: Sequence[Survey]) -> Alignment | str:
    """The alignment with the middle of the bounds of each clock's offset, or the reason why the bounds cannot be used:
    a part of a sentence."""
    if any(abs(stamp) > MAX_STAMP_NS for survey in surveys for stamp in survey.facts.span):
        return "their timestamps are too far apart to be aligned"
    number_of_host, clock_of_rank = _number_clocks(surveys)
    met = _select_cross_clock(meetings(surveys), clock_of_rank)
    clock_by_rank = {survey.facts.rank: int(clock) for survey, clock in zip(surveys, clock_of_rank)}
    # A rank that clocks were compared with may be missing: its clock still connects those that were.
    for survey in surveys:
        if survey.facts.clock_offset is not None:
            clock_by_rank.setdefault(survey.facts.clock_offset.reference, len(number_of_host))
    comparisons = [
        Comparison(clock_by_rank[survey.facts.rank], clock_by_rank[offset.reference], offset)
        for survey in surveys
        if (offset := survey.facts.clock_offset) is not None
    ]
    middle = np.zeros(max(clock_by_rank.values()) + 1, np.int64)
    for number in range(len(number_of_host)):
        windows = [survey.window for survey, clock in zip(surveys, clock_of_rank) if clock == number]
        middle[number] = (min(start for start, _ in windows) + max(stop for _, stop in windows)) // 2
    bounds = bound_offsets(met, clock_of_rank, middle, comparisons)
    bounds = bounds._replace(low=bounds.low[: len(number_of_host)], high=bounds.high[: len(number_of_host)])
    if not bounds.is_consistent:
        return "their collectives cannot have happened as recorded, whatever the clocks' offsets"
    if len(bounds.unbounded):
        host = list(number_of_host)[int(bounds.unbounded[-1])]
        return f"nothing bounds the offset of {host}'s clock: it has no collective with the others in the files"
    clocks = tuple(ClockCorrection(int(bounds.middle[number])) for number in clock_of_rank)
    return _describe_bounds(surveys, met, clocks, bounds.uncertainty_ns, len(comparisons))


def _describe_bounds(
    surveys: Sequence[Survey], met: Meetings, clocks: tuple[ClockCorrection, ...], uncertainty_ns: int, comparisons: int
) -> Alignment | str:
    """The alignment if the offsets are known well enough, else why not. `met`: meetings between clocks; `clocks`: by
    rank index; `uncertainty_ns`: of the offsets; `comparisons`: number of clocks that were compared by messages."""
    if not all(clock.covers(*survey.facts.span) for survey, clock in zip(surveys, clocks)):
        return "their timestamps are too far apart to be aligned"
    if not _windows_overlap(surveys, clocks):
        return "their windows do not overlap after alignment"
    aligned = met.on(
        [clock.at(survey.start) for survey, clock in zip(surveys, clocks)],
        [clock.at(survey.stop) for survey, clock in zip(surveys, clocks)],
    )
    waits_ns = (
        aligned.arrived - np.minimum.reduceat(aligned.start, aligned.first[:-1]) if met.size else np.zeros(1, int)
    )
    wait_ns = int(lower_median(np.sort(waits_ns)))
    step_ns = min(_part_ns(survey, is_shared=met.size > 0) for survey in surveys)
    shown = units.show_time(uncertainty_ns)
    collectives = f"{met.size} collectives, which no rank leaves before the last one has arrived" if met.size else ""
    messages = f"messages between {comparisons + 1} hosts" if comparisons else ""
    evidence = " and ".join(filter(None, [messages, collectives]))
    if uncertainty_ns > max(wait_ns // _MIN_WAIT_RATIO, step_ns // _MIN_STEP_RATIO):
        return (
            f"their offsets are known within ±{shown} only, by {evidence}, while the ranks wait "
            f"{units.show_time(wait_ns)} in a collective (median) and a step takes {units.show_time(step_ns)}"
        )
    why = f"Clock offsets are known within ±{shown}, by {evidence}. Shorter waits may be attributed to the wrong rank."
    return Alignment(aligned="bounds", why=why, clocks=clocks, uncertainty_ns=uncertainty_ns)


def _part_ns(survey: Survey, is_shared: bool) -> int:
    """Length (ns) of a rank's steps, the lower median. If the file does not mark two steps, it is 0 for ranks that
    share collectives between clocks (`is_shared`), whose waits then decide, else the length of the window."""
    if len(survey.ends) > 1:
        return int(lower_median(np.sort(np.diff(survey.ends))))
    return 0 if is_shared else survey.window[1] - survey.window[0]


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
