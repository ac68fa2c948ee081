"""The steps of a replay, from the replayed times alone: the same bounds that booking the replayed events gives.

A part is a labelled period [start, stop) of a rank's window (`StepPart`), such as a step. Ops are the nodes of the
dependency graph; an interval is a row of a rank's `Classified`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from trainyard import words
from trainyard.events import I64, Events
from trainyard.trace.align import steps
from trainyard.trace.align.steps import PartName, StepPart
from trainyard.trace.booking.book_rank import ClassifiedRank
from trainyard.trace.whatif.profile_ops import Profile
from trainyard.trace.whatif.replayed_events import ReplayClock, replay_marks

_COMPUTE = list(words.KINDS).index("compute")


def replay_parts(
    ranks: Sequence[ClassifiedRank], profile: Profile, start: I64, stop: I64, *, shared: bool, is_whole_window: bool
) -> list[list[StepPart]]:
    """The parts of each rank's window in a replay.

    `start`, `stop`: replayed times of all ops of `profile` in ns; `shared`: the ranks share a clock, and so the bounds
    between steps; `is_whole_window`: the window is one part.
    """
    replayed = [_replay_rank(rank, index, profile, start, stop) for index, rank in enumerate(ranks)]
    if is_whole_window or not all(rank.events.marks for rank in ranks):
        return [steps.whole_window(events) for events, _ in replayed]
    ends: Sequence[Sequence[int]] = [own for _, own in replayed]
    names: Sequence[Sequence[PartName]] = [steps.part_names(events) for events, _ in replayed]
    if shared and steps.coincide([events for events, _ in replayed]):
        ends, names = steps.share_bounds(ends, names)
    return [steps.parts(events, own, own_names) for (events, _), own, own_names in zip(replayed, ends, names)]


def _replay_rank(
    rank: ClassifiedRank, rank_index: int, profile: Profile, start: I64, stop: I64
) -> tuple[Events, list[int]]:
    """Return (the rank's events at replayed times, the ends of its steps in ns).

    `start`, `stop`: replayed ns of every op (node of the dependency graph) of `profile`. `profile.begin[rank_index][i]`
    and `profile.end[rank_index][i]` are the ops at the start and the stop of the rank's device interval i. Of the host
    spans, only the starts of those that launched work are replayed, because steps depend on no others.
    """
    events, classified = rank.events, rank.classified
    clock = ReplayClock(profile, profile.host[rank_index], start, stop)
    events = replay_marks(events, clock)
    if len(events.work):
        begin, end = profile.begin[rank_index], profile.end[rank_index]
        is_launcher = np.zeros(len(events.host) + 1, bool)  # the last element is for launches that are not in the file
        is_launcher[classified.launcher] = True
        launcher = np.flatnonzero(is_launcher[:-1])
        host_start = np.zeros(len(events.host), np.int64)
        host_start[launcher] = clock.at(events.host.start[launcher])
        work_start, work_stop = start[begin], stop[end]
        # An interval without a known launch counts to the same step as the interval before it on its stream, so the
        # intervals are sorted by replayed time.
        order = np.lexsort((np.arange(len(begin)), -work_stop, work_start))
        work = msgspec.structs.replace(
            events.work, start=work_start[order], stop=work_stop[order], stream=events.work.stream[order]
        )
        host = msgspec.structs.replace(events.host, start=host_start)
        events = msgspec.structs.replace(events, work=work, host=host)
        classified = classified._replace(
            start=work.start, stop=work.stop, key=classified.key[order], launcher=classified.launcher[order]
        )
    is_compute = np.append(rank.keys.kinds() == _COMPUTE, False)[classified.key]  # key -1 is not compute
    return events, steps.ends(events, classified, is_compute) if events.marks else []
