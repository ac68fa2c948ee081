"""How fast collectives moved their data: algorithm and bus bandwidth by collective, group and size.

Definitions as in nccl-tests' doc/PERFORMANCE.md: algorithm bandwidth is size / time; bus bandwidth multiplies it by
what each member's link must carry for one byte of result, so that it can be held against the hardware's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from trainyard.events import Collective
from trainyard.stats.medians import lower_median
from trainyard.trace.align.matching import SYMMETRIC, Meetings, Transfers, meetings, transfers
from trainyard.trace.align.survey import Survey
from trainyard.trace.readers.collectives import group_of

_MATCHED = (*(name for name in SYMMETRIC if name != "barrier"), "broadcast", "reduce")
_SEND = "send_recv"


class Bandwidth(NamedTuple):
    """Collectives of one kind and group, of like size: from a power of two up to the next.

    `from_last`: timed from the last member's arrival to the last one's end; else, where the clocks do not agree or
    not all members are in the files, the shortest member's duration, which may hold waiting for the others: a lower
    bound. `size` (bytes), `time_ns`, `algbw` and `busbw` (bytes/s) are medians of `count`, `slowest` and `fastest` the
    extremes of busbw; those three are None where the number of members is unknown (`members` 0).
    """

    collective: str
    group: str
    members: int
    size: int
    count: int
    time_ns: int
    algbw: int
    busbw: int | None
    slowest: int | None
    fastest: int | None
    from_last: bool


class _Timed(NamedTuple):
    kind: Collective
    group: str
    members: int
    size: int
    ns: int
    from_last: bool


def bandwidths(surveys: Sequence[Survey], aligned: bool) -> list[Bandwidth]:
    """One row for each (collective, group, members, bucket of sizes, way of timing), by collective, group and size.
    Surveys are on the common clock where `aligned`. Barriers and empty messages have no bandwidth."""
    met, sent = meetings(surveys, _MATCHED), transfers(surveys)
    alone = [np.ones(len(one.row), bool) for one in surveys]
    for place, entry in [
        *zip(met.place.tolist(), met.entry.tolist()),
        *zip(sent.sender.tolist(), sent.send.tolist()),
        *zip(sent.receiver.tolist(), sent.receive.tolist()),
    ]:
        alone[place][entry] = False
    buckets: dict[tuple[str, str, int, int, bool], list[_Timed]] = defaultdict(list)
    for timed in (*_of_meetings(surveys, met, aligned), *_of_transfers(surveys, sent, aligned), *_of(surveys, alone)):
        if timed.size > 0 and timed.ns > 0:
            bucket = timed.size.bit_length()
            buckets[timed.kind.name, timed.group, timed.members, bucket, timed.from_last].append(timed)
    return [_row(*key[:3], found) for key, found in sorted(buckets.items())]


def bus_factor(collective: str, members: int) -> Fraction | None:
    """Bus over algorithm bandwidth; None where it depends on what the file does not say."""
    if collective == _SEND:
        return Fraction(1)
    if not members:
        return None
    if collective == "all_reduce":
        return Fraction(2 * (members - 1), members)
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return Fraction(members - 1, members)
    return Fraction(1) if collective in ("broadcast", "reduce") else None


def _of_meetings(surveys: Sequence[Survey], met: Meetings, aligned: bool) -> Iterator[_Timed]:
    if not met.size:
        return
    first = met.first[:-1]
    until = np.maximum.reduceat(met.stop, first)
    shortest = np.minimum.reduceat(met.stop - met.start, first)
    sure = (met.arrived < met.left) & aligned
    ns = np.where(sure, until - met.arrived, shortest)
    for begin, end, length, exact in zip(first.tolist(), met.first[1:].tolist(), ns.tolist(), sure.tolist()):
        members = list(zip(met.place[begin:end].tolist(), met.entry[begin:end].tolist()))
        said = [surveys[place].kinds[surveys[place].kind[entry]] for place, entry in members]
        facts = surveys[members[0][0]].facts
        yield _Timed(said[0], group_of(said[0], facts), end - begin, max(one.size for one in said), length, exact)


def _of_transfers(surveys: Sequence[Survey], sent: Transfers, aligned: bool) -> Iterator[_Timed]:
    last = np.maximum(sent.sent_from, sent.received_from)
    sure = (last < sent.received_until) & aligned
    shortest = np.minimum(sent.sent_until - sent.sent_from, sent.received_until - sent.received_from)
    ns = np.where(sure, sent.received_until - last, shortest)
    ends = zip(sent.receiver.tolist(), sent.receive.tolist(), ns.tolist(), sure.tolist())
    for place, entry, length, exact in ends:
        kind = surveys[place].kinds[surveys[place].kind[entry]]
        yield _Timed(kind, group_of(kind, surveys[place].facts), 2, kind.size, length, exact)


def _of(surveys: Sequence[Survey], alone: Sequence[np.ndarray]) -> Iterator[_Timed]:
    """Collectives whose other members are not in the files."""
    for one, rows in zip(surveys, alone):
        groups = [group_of(kind, one.facts) for kind in one.kinds]
        for entry in np.flatnonzero(rows).tolist():
            number = int(one.kind[entry])
            kind = one.kinds[number]
            members = 2 if kind.name == _SEND else kind.members
            if kind.name in (*_MATCHED, _SEND):
                yield _Timed(kind, groups[number], members, kind.size, int(one.stop[entry] - one.start[entry]), False)


def _row(collective: str, group: str, members: int, found: Sequence[_Timed]) -> Bandwidth:
    factor = bus_factor(collective, members)
    ordered = sorted(found, key=lambda timed: Fraction(timed.size, timed.ns))
    middle = lower_median(ordered)
    bus = [None if factor is None else int(factor * timed.size * 10**9 / timed.ns) for timed in ordered]
    return Bandwidth(
        collective=collective,
        group=group,
        members=members,
        size=lower_median(sorted(timed.size for timed in found)),
        count=len(found),
        time_ns=lower_median(sorted(timed.ns for timed in found)),
        algbw=middle.size * 10**9 // middle.ns,
        busbw=lower_median(bus),
        slowest=bus[0],
        fastest=bus[-1],
        from_last=found[0].from_last,
    )
