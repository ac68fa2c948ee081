"""What all ranks together settle, from their surveys alone: clocks, who met whom, where each rank's time is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.events import I32, I64, Events
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Aligned, Alignment, alignment
from trainyard.trace.align.bandwidth import Bandwidth, bandwidths
from trainyard.trace.align.clocks import ClockCorrection
from trainyard.trace.align.matching import Meetings, Transfers, meetings, transfers
from trainyard.trace.align.survey import Survey

Window = Literal["steps", "all"]


class Cuts(NamedTuple):
    """Where a rank's intervals `row` are split: at `at`, since until then they waited for the rank at place `late`."""

    row: I64
    at: I64
    late: I32


class RankAgreement(NamedTuple):
    """One rank's share of what was settled. `survey`: the index of its survey. `ends`: of its steps on
    the common clock, None if the window is booked as one; `arrivals`, `unmet`: where its collectives and its transfers
    are cut."""

    survey: int
    rank: int
    group_sizes: tuple[int, ...]
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


def _numbered(facts: Sequence[Events], places: Sequence[int]) -> list[int]:
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


def align_ranks(surveys: Sequence[Survey], window: Window = "steps", places: Sequence[int] = ()) -> Agreement:
    """Clocks, steps, groups and waits that the ranks share. `places`: the number of each rank's file among all files,
    if some of them could not be read. Raises `BadInput` for ranks of different jobs."""
    ranks = _numbered([survey.facts for survey in surveys], places)
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    # A rank knows the groups it is in; whether all ranks are the only group, all of them together know.
    sizes = tuple(sorted({size for one in surveys for size in one.facts.group_sizes}))
    surveys = [
        surveys[number]._replace(
            facts=msgspec.structs.replace(surveys[number].facts, rank=ranks[number], group_sizes=sizes)
        )
        for number in order
    ]
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
        RankAgreement(number, survey.facts.rank, sizes, agreed.aligned, clock, tuple(own) if marked else None, *cuts)
        for number, survey, clock, own, *cuts in zip(
            order, surveys, agreed.clocks, ends, last_arrivals(met, surveys), unmet(sent, surveys)
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


def last_arrivals(met: Meetings, surveys: Sequence[Survey]) -> list[Cuts]:
    """For each rank, its collectives that began before the last member came."""
    sizes = np.diff(met.first)
    last, late = np.repeat(met.arrived, sizes), np.repeat(met.late, sizes)
    waited = met.start < last
    return _by_place(surveys, met.place[waited], met.entry[waited], last[waited], late[waited])


def unmet(sent: Transfers, surveys: Sequence[Survey]) -> list[Cuts]:
    """For each rank, its receives that began before the send did, and its sends that began before the receive."""
    early = sent.received_from < sent.sent_from
    # A short message may be buffered, and its send be over before anybody receives.
    held = (sent.sent_from < sent.received_from) & (sent.received_from < sent.sent_until)
    until = np.where(held, sent.received_from, sent.sent_from)
    late = sent.receiver.copy()
    for place in [place for place, one in enumerate(surveys) if not one.on_device]:
        _until_received(sent, early, place, until, late)
    held = until > sent.sent_from
    return _by_place(
        surveys,
        np.concatenate([sent.receiver[early], sent.sender[held]]),
        np.concatenate([sent.receive[early], sent.send[held]]),
        np.concatenate([sent.sent_from[early], until[held]]),
        np.concatenate([sent.sender[early], late[held]]),
    )


def _until_received(sent: Transfers, early: NDArray[np.bool_], place: int, until: I64, late: I64) -> None:
    """Gloo's span of a send lasts until its rank waits for it, long after the message left: beside a receive that
    waits, it waits for that. Moves `until` and `late` of the sends of one place."""
    waits = np.flatnonzero(early & (sent.receiver == place))
    waits = waits[np.argsort(sent.sent_from[waits], kind="stable")]
    sends = np.flatnonzero(sent.sender == place)
    found = np.searchsorted(sent.sent_from[waits], sent.sent_until[sends], "left") - 1
    sends, found = sends[found >= 0], waits[found[found >= 0]]
    longer = sent.sent_from[found] > until[sends]
    until[sends[longer]], late[sends[longer]] = sent.sent_from[found[longer]], sent.sender[found[longer]]


def _by_place(surveys: Sequence[Survey], place: I64, entry: I64, at: I64, late: I64) -> list[Cuts]:
    rows = [np.flatnonzero(place == number) for number in range(len(surveys))]
    return [Cuts(one.row[entry[own]], at[own], late[own].astype(np.int32)) for one, own in zip(surveys, rows)]
