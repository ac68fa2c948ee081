"""What all ranks together settle, from their surveys alone: clocks, who met whom, where each rank's time is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from trainyard.errors import BadInput
from trainyard.events import Events
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Aligned, Alignment, alignment
from trainyard.trace.align.arrivals import Cuts, last_arrivals, unmet
from trainyard.trace.align.bandwidth import Bandwidth, bandwidths
from trainyard.trace.align.clocks import ClockCorrection
from trainyard.trace.align.matching import Meetings, meetings
from trainyard.trace.align.survey import Survey
from trainyard.trace.align.transfers import transfers

Window = Literal["steps", "all"]


class RankAgreement(NamedTuple):
    """One rank's share of what was settled. `ends`: of its steps on the common clock, None where the window is booked
    as one; `arrivals`, `unmet`: where its collectives and its transfers are cut."""

    rank: int
    group_sizes: tuple[int, ...]
    axis: str
    aligned: Aligned
    clock: ClockCorrection
    ends: tuple[int, ...] | None
    arrivals: Cuts
    unmet: Cuts


class Agreement(NamedTuple):
    """`facts` and `shares` in order of rank. `met`: where clocks agree, collectives and their members."""

    facts: tuple[Events, ...]
    alignment: Alignment
    shares: tuple[RankAgreement, ...]
    met: Meetings
    bandwidths: tuple[Bandwidth, ...]


_ONE_RUN = "Give the files of one run; compare two runs with trainyard diff."


def numbered(facts: Sequence[Events], places: Sequence[int] = ()) -> list[int]:
    """Each file's rank. A file that does not state one is numbered by its place among all files: by order, unless
    `places` gives it because files between them could not be read. Raises `BadInput` for a rank that is there twice."""
    if not facts:
        raise BadInput("there is no trace to book.")
    seen: dict[int, str] = {}
    for place, events in zip(places or range(len(facts)), facts):
        rank = events.rank if events.rank >= 0 else place
        if rank in seen:
            raise BadInput(
                f"{seen[rank]} and {events.source} both say they are rank {rank}."
                if events.rank >= 0
                else f"{seen[rank]} says it is rank {rank}; {events.source} says none, and would pass for it.",
                _ONE_RUN,
            )
        seen[rank] = events.source
    worlds = {events.world: events.source for events in facts if events.rank >= 0 and events.world}
    if len(worlds) > 1:
        (one, first), (other, second), *_ = sorted(worlds.items())
        raise BadInput(f"{first} is of a world of {one} ranks, {second} of one of {other}.", _ONE_RUN)
    beyond = [rank for rank in seen if worlds and len(facts) > 1 and rank >= max(worlds)]
    if beyond:
        raise BadInput(
            f"{seen[beyond[0]]} is taken for rank {beyond[0]} of a world of {max(worlds)} ranks.",
            _ONE_RUN,
        )
    return list(seen)


def agree(surveys: Sequence[Survey], window: Window = "steps", axis: str = "") -> Agreement:
    """Of ranks in order. `axis`: the mesh axis that all ranks form, where the job's layout has only one."""
    # A rank knows the groups it is in; whether all ranks are the only group, all of them together know.
    sizes = tuple(sorted({size for one in surveys for size in one.facts.group_sizes}))
    surveys = [one._replace(facts=msgspec.structs.replace(one.facts, axis=axis, group_sizes=sizes)) for one in surveys]
    agreed = alignment(surveys)
    aligned = agreed.aligned != "no"
    surveys = [_on(one, clock) for one, clock in zip(surveys, agreed.clocks)]
    marked = window == "steps" and all(one.facts.marks for one in surveys)
    ends: list[Sequence[int]] = [one.ends for one in surveys]
    if marked and aligned:
        ends = list(steps.share(ends, [[mark.label for mark in one.facts.marks] for one in surveys]))
    met = meetings(surveys if aligned else ()).overlapping()
    sent = transfers(surveys if aligned else ()).possible()
    shares = tuple(
        RankAgreement(one.facts.rank, sizes, axis, agreed.aligned, clock, tuple(own) if marked else None, *cuts)
        for one, clock, own, *cuts in zip(
            surveys, agreed.clocks, ends, last_arrivals(met, surveys), unmet(sent, surveys)
        )
    )
    rates = tuple(bandwidths(surveys, aligned))
    return Agreement(tuple(one.facts for one in surveys), agreed, shares, met, rates)


def _on(one: Survey, clock: ClockCorrection) -> Survey:
    """The survey on the common clock."""
    return one._replace(
        facts=clock.corrected(one.facts),
        window=(clock.when(one.window[0]), clock.when(one.window[1])),
        ends=tuple(clock.when(end) for end in one.ends),
        start=clock.at(one.start),
        stop=clock.at(one.stop),
    )
