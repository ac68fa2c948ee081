"""Cross-rank alignment from the ranks' surveys: clocks, matched collectives, and where waits end in each rank.

A survey is the part of a rank's trace that other ranks need: its facts, its steps, and the times of its collectives (a
survey's entries). A meeting is a collective whose members on all ranks were matched. `measure.py` calls `align_ranks`
before it books each rank separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainyard.errors import BadInput
from trainyard.events import I32, I64, Events
from trainyard.trace.align import steps
from trainyard.trace.align.alignment import Aligned, Alignment, align_clocks
from trainyard.trace.align.bandwidth import Bandwidth, measure_bandwidths
from trainyard.trace.align.clocks import ClockCorrection
from trainyard.trace.align.device_models import refuse_separate_recordings, refuse_unstated_job
from trainyard.trace.align.matching import Meetings, Transfers, meetings, transfers
from trainyard.trace.align.steps import PartName
from trainyard.trace.align.survey import Survey
from trainyard.trace.align.traffic import PairTraffic, measure_traffic

Window = Literal["steps", "all"]


class WaitCuts(NamedTuple):
    """Splits of a rank's collectives and transfers, one element each: the interval in row `row` of the rank's table (of
    device work, or of host spans if it has none) waited until the time `at`, ns, for the rank with index `late`."""

    row: I64
    at: I64
    late: I32


class RankAgreement(NamedTuple):
    """The alignment as one rank needs it. `survey`: the position of its survey in the argument of `align_ranks`;
    `ends`: ends (ns on the common clock) of the time before the first step and of the parts `names`, None if the window
    is booked as one; `arrivals`, `unmet`: the splits of its collectives and of its transfers."""

    survey: int
    rank: int
    group_sizes: tuple[int, ...]
    aligned: Aligned
    clock: ClockCorrection
    ends: tuple[int, ...] | None
    names: tuple[PartName, ...]
    arrivals: WaitCuts
    unmet: WaitCuts


class Agreement(NamedTuple):
    """The alignment of all ranks. `facts` and `shares` in order of rank. `met`: matched collectives; empty if
    clocks are not aligned."""

    facts: tuple[Events, ...]
    alignment: Alignment
    shares: tuple[RankAgreement, ...]
    met: Meetings
    bandwidths: tuple[Bandwidth, ...]
    traffic: tuple[PairTraffic, ...]


_ONE_RUN = "Pass the files of one run. To compare two runs, use trainyard diff."


def _assign_ranks(facts: Sequence[Events], file_indices: Sequence[int]) -> list[int]:
    """Each file's rank. A file without a rank is numbered by its index among all files: its position, or its entry in
    `file_indices` if some files could not be read. Raises `BadInput` for a rank that occurs twice, and for files of
    unlike devices that do not state their job."""
    if not facts:
        raise BadInput("no traces given.")
    refuse_unstated_job(facts, _ONE_RUN)
    source_of_rank: dict[int, str] = {}
    for index, events in zip(file_indices or range(len(facts)), facts):
        rank = events.rank if events.rank >= 0 else index
        if rank in source_of_rank:
            same_rank = source_of_rank[rank]
            raise BadInput(
                f"{same_rank} and {events.source} are both from rank {rank}."
                if events.rank >= 0
                else f"{same_rank} is from rank {rank}; {events.source} names no rank and would be numbered {rank}.",
                _ONE_RUN,
            )
        source_of_rank[rank] = events.source
    worlds = {events.world: events.source for events in facts if events.rank >= 0 and events.world}
    if len(worlds) > 1:
        (world, first), (other_world, second), *_ = sorted(worlds.items())
        raise BadInput(
            f"{first} is from a job with world size {world}, {second} from one with {other_world}.", _ONE_RUN
        )
    impossible_ranks = [rank for rank in source_of_rank if worlds and len(facts) > 1 and rank >= max(worlds)]
    if impossible_ranks:
        rank = impossible_ranks[0]
        raise BadInput(
            f"{source_of_rank[rank]} would be rank {rank}, but the world size is {max(worlds)}.",
            _ONE_RUN,
        )
    return list(source_of_rank)


def align_ranks(
    surveys: Sequence[Survey],
    window: Window = "steps",
    file_indices: Sequence[int] = (),
    *,
    with_rates: bool = True,
) -> Agreement:
    """Aligns clocks, steps, groups and waits of all ranks. `window`: book the steps, or the whole recording (`all`);
    `file_indices`: the index of each rank's file among all files, if some of them could not be read; `with_rates`:
    measure bandwidths and traffic. Raises `BadInput` for ranks of different jobs."""
    ranks = _assign_ranks([survey.facts for survey in surveys], file_indices)
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    # Each rank only knows its own groups; whether the world is the only group takes all ranks.
    sizes = tuple(sorted({size for item in surveys for size in item.facts.group_sizes}))
    surveys = [
        surveys[survey_index]._replace(
            facts=msgspec.structs.replace(surveys[survey_index].facts, rank=ranks[survey_index], group_sizes=sizes)
        )
        for survey_index in order
    ]
    agreed = align_clocks(surveys)
    aligned = agreed.aligned != "no"
    refuse_separate_recordings([item.facts for item in surveys], [item.window for item in surveys], aligned, _ONE_RUN)
    surveys = [_on_common_clock(item, clock) for item, clock in zip(surveys, agreed.clocks)]
    has_steps = window == "steps" and all(item.facts.marks for item in surveys)
    ends: Sequence[Sequence[int]] = [item.ends for item in surveys]
    names: Sequence[Sequence[PartName]] = [steps.part_names(item.facts) for item in surveys]
    if has_steps and aligned and steps.coincide([item.facts for item in surveys]):
        ends, names = steps.share_bounds(ends, names)
    collectives = meetings(surveys if aligned else ()).overlapping()
    matched_transfers = transfers(surveys if aligned else ()).possible()
    rank_agreements = tuple(
        RankAgreement(
            survey_index,
            survey.facts.rank,
            sizes,
            agreed.aligned,
            clock,
            tuple(step_ends) if has_steps else None,
            tuple(part_names),
            *cuts,
        )
        for survey_index, survey, clock, step_ends, part_names, *cuts in zip(
            order,
            surveys,
            agreed.clocks,
            ends,
            names,
            last_arrivals(collectives, surveys),
            transfer_waits(matched_transfers, surveys),
        )
    )
    return Agreement(
        facts=tuple(item.facts for item in surveys),
        alignment=agreed,
        shares=rank_agreements,
        met=collectives,
        bandwidths=tuple(measure_bandwidths(surveys, aligned)) if with_rates else (),
        traffic=tuple(measure_traffic(surveys, aligned)) if with_rates else (),
    )


def _on_common_clock(survey: Survey, clock: ClockCorrection) -> Survey:
    """The survey on the common clock."""
    return survey._replace(
        facts=clock.corrected(survey.facts),
        window=(clock.when(survey.window[0]), clock.when(survey.window[1])),
        ends=tuple(clock.when(end) for end in survey.ends),
        start=clock.at(survey.start),
        stop=clock.at(survey.stop),
    )


def last_arrivals(met: Meetings, surveys: Sequence[Survey]) -> list[WaitCuts]:
    """Splits each rank's collectives that began before the last member arrived, at that arrival. One item for each of
    `surveys`. `met`: the matched collectives on the common clock."""
    sizes = np.diff(met.first)
    last, late = np.repeat(met.arrived, sizes), np.repeat(met.late, sizes)
    waited = met.start < last
    return _wait_cuts_by_rank(surveys, met.rank_index[waited], met.entry[waited], last[waited], late[waited])


def transfer_waits(sent: Transfers, surveys: Sequence[Survey]) -> list[WaitCuts]:
    """Splits each rank's receives that began before the send, and its sends that began before the receive. One item for
    each of `surveys`."""
    receive_waits = sent.received_from < sent.sent_from
    # A short message may be buffered, so that its send ends before the receive begins.
    send_waits = (sent.sent_from < sent.received_from) & (sent.received_from < sent.sent_until)
    until = np.where(send_waits, sent.received_from, sent.sent_from)
    late = sent.receiver.copy()
    for rank_index in [rank_index for rank_index, survey in enumerate(surveys) if not survey.on_device]:
        _extend_gloo_sends(sent, receive_waits, rank_index, until, late)
    send_waits = until > sent.sent_from
    return _wait_cuts_by_rank(
        surveys,
        np.concatenate([sent.receiver[receive_waits], sent.sender[send_waits]]),
        np.concatenate([sent.receive[receive_waits], sent.send[send_waits]]),
        np.concatenate([sent.sent_from[receive_waits], until[send_waits]]),
        np.concatenate([sent.sender[receive_waits], late[send_waits]]),
    )


def _extend_gloo_sends(
    sent: Transfers, receive_waits: NDArray[np.bool_], rank_index: int, until: I64, late: I64
) -> None:
    """Moves `until` (ns) and `late` (rank index) of one rank's sends, in place; one element for each transfer, as in
    `receive_waits`, whether its receive began first. Gloo's span of a send lasts until its rank waits for it,
    long after the message was sent: if the rank is in a waiting receive, the send waits for that."""
    waits = np.flatnonzero(receive_waits & (sent.receiver == rank_index))
    waits = waits[np.argsort(sent.sent_from[waits], kind="stable")]
    sends = np.flatnonzero(sent.sender == rank_index)
    receive = np.searchsorted(sent.sent_from[waits], sent.sent_until[sends], "left") - 1
    sends, receive = sends[receive >= 0], waits[receive[receive >= 0]]
    longer = sent.sent_from[receive] > until[sends]
    until[sends[longer]], late[sends[longer]] = sent.sent_from[receive[longer]], sent.sender[receive[longer]]


def _wait_cuts_by_rank(surveys: Sequence[Survey], rank_index: I64, entry: I64, at: I64, late: I64) -> list[WaitCuts]:
    """Groups splits by rank; one item for each of `surveys`. One element for each split: `rank_index` and `entry` of
    the interval (position of its survey, and in it), time `at` (ns), and index `late` of the rank that was late."""
    rows = [np.flatnonzero(rank_index == survey_index) for survey_index in range(len(surveys))]
    return [
        WaitCuts(survey.row[entry[rank_rows]], at[rank_rows], late[rank_rows].astype(np.int32))
        for survey, rank_rows in zip(surveys, rows)
    ]
